"""Time of the host in calls of GPU programs, on a machine without a GPU: `python -m benchmarks.gpu.host_calls
[--kernels N]`.

The driver is one of this CPU that does next to nothing (tests/backends/driver_host.c), tensors are the CPU's. Printed:
µs of a call of a program of fixed size in each launch mode, through the program's own code and through its direct
function (`backends/program/launch/direct_calls.py`); and of first and later calls at sizes of a program of every size.
Least of many rounds.
"""

from __future__ import annotations

import argparse
import ctypes
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tests.backends import driver_host

from tensor_graphs.backends.program.helpers import gpu_calls, gpu_launches
from tensor_graphs.backends.program.manifest import Manifest
from tensor_graphs.backends.program.program import Program
from tensor_graphs.egraph.types.dims import dim

WIDTH = 8
SIZED = (1, 4096, 128)


def fixed(kernels: int, mode: str) -> Any:
    """Calls of a program of `kernels` kernels, one after the other, in a launch mode."""
    launches, memory = gpu_launches.Launches(), torch.zeros(kernels, WIDTH)
    add = launches.of(driver_host.Kernel(ctypes.CDLL("libcuda.so.1"), "add"))

    def launch(x: Any, out: Any) -> Any:
        for k in range(kernels - 1):
            add(x if not k else memory[k - 1], x, memory[k])
        add(memory[kernels - 2] if kernels > 1 else x, x, out)
        return (out,)

    spec = ((WIDTH,), torch.float32)
    return driver_host.as_on_gpu(
        gpu_calls.Calls(launch, launches, [spec], [(*spec, None)], "cpu", True, strict=False, launch_mode=mode)
    )


def sized(kernels: int) -> Any:
    """Calls at every size of a program of `kernels` kernels with sizes as arguments."""
    names = [*(f"v{k}" for k in range(kernels - 1)), "out"]
    offsets = [f"offset{k} = {f'offset{k - 1} + (4*T + 255) // 256 * 256' if k else 0}" for k in range(kernels)]
    views = [f"{v} = spaces[torch.float32].as_strided((T,), (1,), offset{k} // 4)" for k, v in enumerate(names[:-1])]
    run = driver_host.sized_program(ctypes.CDLL("libcuda.so.1"), "\n".join([
        "T = x_shape[0]", "check_sizes((x_shape, ), ((T,),), (('1 <= T <= 4096', 1 <= T <= 4096), ))", *offsets,
        f"spaces = workspace.take(offset{kernels - 1} + 4*T)", *views, "kernels = Launches()", "",
        "def launch(x, out, *, add=kernels.of(add)):",
        *(f"    add({a}, x, {b}, sizes=(T,), grid=(127 + T) // 128)" for a, b in zip(["x", *names], names)),
        "    return out,", "", "spec = ((T,), torch.float32)",
        "return Calls(launch, kernels, [spec], [(*spec, None)], device, True, reuse=False, library=[], strict=False)",
    ]))  # fmt: skip
    run.warm([((2,),), ((700,),)], {})
    return run


def program(run: Any, is_sized: bool) -> Program:
    """A program of one input and one output around bound calls."""
    shape = (dim("T", max=SIZED[1]),) if is_sized else (WIDTH,)
    manifest = Manifest("host", (("x", shape, "float32"),), (("y", shape, "float32"),), None, (), (), 0, 0, 1, 0.0, 0.0,
                        device="cuda", sizes={"T": SIZED} if is_sized else {})  # fmt: skip
    made = Program.from_saved(manifest, "", {}, None, "cpu")
    made._run = run
    made._quick = None if is_sized else made.quick(manifest.inputs)  # type: ignore[arg-type]
    return made


def least_us(call: Callable[[Any], Any], given: list[Any], rounds: int = 200) -> float:
    """Least µs of a call, of rounds over `given`."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        for x in given:
            call(x)
        times.append((time.perf_counter() - start) / len(given))
    return 1e6 * min(times)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", type=int, default=2)
    kernels = parser.parse_args().kernels
    driver_host.install(driver_host.compiled(Path(tempfile.mkdtemp())), lambda o, n, v, raising=True: setattr(o, n, v))
    inputs = [torch.zeros(WIDTH) for _ in range(64)]
    for mode in ("flat", "graph", "copying"):
        for direct in (False, True):
            made = program(fixed(kernels, mode), False)
            made._direct_calls.wait = int(direct)
            for x in inputs[:4]:
                made(x)
            name = "direct function" if made._direct is not None else "own code"
            if direct == (made._direct is not None):
                print(f"{mode:8} {name:16} {least_us(made, inputs):6.2f} µs", flush=True)
    for direct in (0, 1):
        type(made)._tries = property(lambda self, direct=direct: direct)  # type: ignore[assignment, misc]
        made = program(sized(kernels), True)
        calls: list[list[float]] = []
        for n in range(1000, 1200):
            x = torch.zeros(n)
            calls.append([])
            for _ in range(6):
                start = time.perf_counter()
                made(x)
                calls[-1].append(1e6 * (time.perf_counter() - start))
        name = "direct function" if direct else "own code"
        shown = ", ".join(f"{sorted(c[k] for c in calls)[len(calls) // 4]:.1f}" for k in range(6))
        print(f"every size, {name}: calls 1 to 6 at a length {shown} µs (first quartile)", flush=True)


if __name__ == "__main__":
    main()
