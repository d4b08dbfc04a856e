"""C convolutions of another checkout beside those of this one: `python -m benchmarks.cpu.kernel_versions CHECKOUT`.

The C functions of both (float32, and bytes with rounding to bytes) are compiled with the flags of programs and called
in turn by `ctypes`, on one thread, with equal operands. Times are the least of many calls, less that of a call without
images, in µs; so a loaded machine disturbs them little. Results of bytes must be equal, those of floats up to rounding.
Prints a Markdown table, and the CPU seconds of the compiler.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tensor_graphs.backends.c.convolutions import conv_packed
from tensor_graphs.backends.c.helpers import c_compiler, c_flags, c_short_headers
from tensor_graphs.backends.c.integer_convolutions import integer_packed

from ..common import ROOT

CALLS = 200
NO_LIMIT = (-8388608, 0x7F800000)  # bits of the floats -inf and inf
_TEXT = """
from tensor_graphs.backends.c.{module} import SOURCE
from tensor_graphs.backends.ir import c_math
body = "\\n\\n".join(SOURCE.values())
print(c_math.HEAD, *c_math.needed(body), body, sep="\\n")
"""


class Case(NamedTuple):
    """A convolution of one image of h x w pixels and c channels to k channels, `size` x `size`; `end`: number of the
    activation of floats, or kind of the results of bytes."""

    h: int
    w: int
    c: int
    k: int
    size: int
    stride: int
    end: int

    def geometry(self, n: int) -> tuple[int, ...]:
        """The sizes that a C function gets for `n` images."""
        h, w, c, k, size, stride, _ = self
        pad, strides = size // 2, (c * h * w, 1, w * c, c)
        return (n, h, w, c, *strides, *self.out, k, 1, size, size, stride, stride, 1, 1, pad, pad)

    @property
    def out(self) -> tuple[int, int]:
        """Rows and columns of the result."""
        return (self.h - 1) // self.stride + 1, (self.w - 1) // self.stride + 1


FLOATS = [
    Case(160, 160, 3, 12, 3, 2, 4), Case(80, 80, 12, 24, 3, 2, 4), Case(40, 40, 24, 24, 1, 1, 4), Case(40, 40, 12, 12, 3, 1, 4),
    Case(20, 20, 24, 24, 3, 1, 4), Case(20, 20, 48, 40, 3, 1, 4), Case(56, 56, 16, 16, 1, 1, 1), Case(14, 14, 88, 24, 1, 1, 0),
    Case(7, 7, 240, 40, 1, 1, 0), Case(14, 14, 256, 256, 3, 1, 1), Case(56, 56, 64, 64, 1, 1, 1), Case(9, 11, 20, 21, 5, 1, 3),
]  # fmt: skip
BYTES = [
    Case(100, 100, 3, 28, 3, 2, 2), Case(50, 50, 28, 28, 3, 1, 2), Case(50, 50, 28, 28, 3, 1, 3), Case(25, 25, 56, 56, 3, 1, 2),
    Case(13, 13, 120, 120, 3, 1, 2), Case(14, 14, 96, 576, 1, 1, 2), Case(7, 7, 576, 160, 1, 1, 2), Case(7, 7, 256, 1024, 1, 1, 3),
]  # fmt: skip


def library(checkout: Path, module: str, folder: Path) -> tuple[Any, float]:
    """The compiled C functions of a module of a checkout, and the CPU seconds of the compiler."""
    found = {**os.environ, "PYTHONPATH": str(checkout / "src")}
    text = subprocess.run(
        [sys.executable, "-c", _TEXT.format(module=module)], env=found, cwd=folder, capture_output=True, text=True, check=True
    ).stdout  # fmt: skip
    place = Path(tempfile.mkdtemp(dir=folder))
    (place / "kernels.c").write_text(c_short_headers(text))
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    flags = ["-fopenmp-simd", "-w", "-fPIC", "-shared", "-o", "kernels.so", "kernels.c", "-lm"]
    subprocess.run([*c_compiler(), *c_flags(), *flags], cwd=place, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ctypes.CDLL(str(place / "kernels.so")), after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def operands(case: Case, bytes_: bool) -> list[Any]:
    """The arrays that a C function gets, without result and scratch memory."""
    rng, taps = np.random.default_rng(0), case.c * case.size**2
    w = rng.standard_normal((case.k, case.c, case.size, case.size)) / np.sqrt(taps)
    b, r = rng.standard_normal(case.k).astype(np.float32), rng.integers(0, 256, (*case.out, case.k)).astype(np.uint8)
    if not bytes_:
        x = rng.standard_normal((case.h, case.w, case.c)).astype(np.float32)
        return [x, conv_packed(w.astype(np.float32), 1), b, x]
    x = rng.integers(0, 256, (case.h, case.w, case.c)).astype(np.uint8)
    codes = np.clip(np.round(w * np.sqrt(taps) * 40), -127, 127).astype(np.int8)
    zero, scale = np.array([100], np.uint8), np.array([0.05], np.float32)
    m = (np.abs(rng.standard_normal(case.k)) * 0.01 / np.sqrt(taps)).astype(np.float32)
    return [x, integer_packed(codes, 1), zero, zero, scale, m, b, scale, zero, r, scale, zero, scale, scale, zero]


def compared(libraries: list[Any], case: Case, bytes_: bool) -> list[float]:
    """Least µs of a case's C function in each library."""
    kind = np.float32 if not bytes_ else np.uint8
    given, results = operands(case, bytes_), [np.zeros((*case.out, case.k), kind) for _ in libraries]
    scratch = np.zeros(1 << 24, np.uint8)
    name = "quad_conv" if bytes_ else "tiled_conv"
    copied = case.c % 4 > 0 if bytes_ else case.c < 16
    last = (
        (case.end, 2 + 16 + 64 + 1024 + 2048 + 512 * copied, *NO_LIMIT * 2)
        if bytes_
        else (1 + 4 * copied, case.end, 0, 0)
    )

    def took(n: int, images: int) -> float:
        places = [ctypes.c_void_p(a.ctypes.data) for a in (*given, results[n], scratch)]
        numbers, function = case.geometry(images), getattr(libraries[n], name)
        began = time.perf_counter_ns()
        function(*places, *numbers, *last)
        return (time.perf_counter_ns() - began) / 1e3

    rounds = [[took(n, 1) for n in range(len(libraries))] for _ in range(CALLS)]
    empty = min(took(0, 0) for _ in range(CALLS))
    np.testing.assert_allclose(results[1], results[0], rtol=1e-4 * (not bytes_), atol=1e-4 * (not bytes_))
    return [min(times) - empty for times in zip(*rounds, strict=True)]


def main() -> None:
    """Parse the command line, compare all cases, print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, help="folder of the other checkout")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for module, cases in (("convolutions", FLOATS), ("integer_convolutions", BYTES)):
            made = [library(c, module, Path(folder)) for c in (options.checkout.resolve(), ROOT)]
            print(f"\n{module}: compiler {made[0][1]:.1f}, {made[1][1]:.1f} CPU s\n")
            print("| convolution | other, µs | this, µs | times as fast |\n|---|---|---|---|")
            for case in cases:
                other, this = compared([m[0] for m in made], case, module.startswith("integer"))
                title = f"{case.c} x {case.h} x {case.w} to {case.k}, {case.size} x {case.size}, stride {case.stride}, end {case.end}"
                print(f"| {title} | {other:.0f} | {this:.0f} | {other / this:.2f} |", flush=True)


if __name__ == "__main__":
    main()
