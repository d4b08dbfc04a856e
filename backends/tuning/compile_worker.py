"""Compiles generated kernels without launching them, and reports their use of registers and shared memory.

Runs in compile_server.py's children; needs no GPU.

The module of a kernel text runs on meta tensors with a fake Triton driver for the target architecture: each launch
compiles into Triton's disk cache and nothing runs. A compiler crash or hang ends this process; only the schedule
(tuning parameters) that it was compiling is lost.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from functools import cache
from hashlib import blake2b
from threading import Thread
from typing import Any

from ...costdb.keys.device import GPU_KIND
from ...egraph.ops.ops import Type
from ...egraph.types.dtypes import torch_dtype
from ...extract.model.kernel import Call, Operand
from ..cuda.cubin import resources
from ..generate.kernel_text import KernelText, call_of_json, module_of
from ..machine import REFERENCE, shared_per_block
from ..program.helpers.cuda_helpers import CudaKernel
from ..triton.async_copy_race import async_copy_races

_launched: list[tuple[Any, Any, tuple[Any, ...]]] = []  # compiled kernel, grid, scalar arguments


@cache
def prepare(capability: int) -> None:
    """Install a fake Triton driver for a compute capability (90 is sm_90), so that launches only compile. Needs no
    GPU."""
    from triton.backends.compiler import GPUTarget
    from triton.backends.nvidia.driver import CudaLauncher as launcher
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    class Believed:
        def get_current_target(self) -> Any:
            return GPUTarget(GPU_KIND, capability, REFERENCE.warp)

        def get_current_device(self) -> int:
            return 0

        def get_current_stream(self, device: int = 0) -> int:
            return 0

    compiled = JITFunction.run

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        made = compiled(self, *args, grid=grid, warmup=True, **options)
        with contextlib.suppress(Exception):  # compile the launcher too; otherwise the device would wait later
            launcher(made.src, made.metadata)
        scalars = tuple(a for a in args if isinstance(a, int | float | bool))
        shape = grid if not callable(grid) else grid({**dict(zip(self.arg_names, args)), **options})
        _launched.append((made, tuple(shape), scalars))
        return made

    driver.set_active(Believed())
    JITFunction.run = run


class AsyncCopyRace(Exception):
    """Raised for a kernel in which an asynchronous copy overwrites shared memory that a tensor core still reads."""


def compile_text(text: KernelText, call: Any, capability: int) -> dict[str, Any]:
    """Compile every kernel that a text launches for a call. `capability`: compute capability (90 is sm_90).

    Returns the number of `kernels`; maxima over them: `shared` memory (bytes), `registers` and `spills` per thread;
    `fits`: whether the shared memory suffices; `digest` of binaries and parameters: equal digests mean equal programs.

    Raises AsyncCopyRace if a kernel has an async-copy race.
    """
    import torch

    prepare(capability)
    _launched.clear()
    module = module_of(text)
    if (kernels := getattr(module, "CudaKernel", None)) is not None:
        return cuda_needs(kernels, capability)

    def bare(operand: Any) -> Any:
        shape, dtype = operand.type.shape, torch_dtype(operand.type.dtype)
        return torch.empty_strided(shape, operand.strides, dtype=dtype, device="meta")

    operands = {n: bare(o) for n, o in call.operands.items()}
    operands |= {n: getattr(module, f"prepare_{n}")(operands[n]) for n in text.prepared}
    scratch = torch.empty(text.scratch, dtype=torch.uint8, device="meta")
    module.run(*(operands[o] for o in text.operands), *map(bare, call.outputs), scratch)
    digest, shared, registers, spills = blake2b(digest_size=16), 0, 0, 0
    for kernel, grid, scalars in _launched:
        binary = kernel.asm["cubin"]
        if wrong := async_copy_races(kernel.asm.get("ttgir", "")):
            raise AsyncCopyRace("; ".join(wrong))
        try:
            used = resources(binary)
        except ValueError:  # not a cubin: spills are unknown
            used = 0, 0
        shared, registers, spills = max(shared, kernel.metadata.shared), max(registers, used[0]), max(spills, used[1])
        digest.update(binary)
        digest.update(repr((grid, scalars, kernel.metadata.shared, kernel.metadata.num_warps)).encode())
    return {
        "kernels": len(_launched), "digest": digest.hexdigest(), "shared": shared, "registers": registers,
        "spills": spills, "fits": shared <= shared_per_block(capability),
    }  # fmt: skip


def cuda_needs(kernels: Any, capability: int) -> dict[str, Any]:
    """Compile a module's CUDA C++ kernels by NVRTC, without launching them; returns their resource use (shared memory,
    registers and others), like `compile_text`.

    `kernels`: the class `CudaKernel` of the emitted module. `capability`: 90 is sm_90.
    """
    found = [kernel.compiled(f"sm_{capability}").code for kernel in kernels.known.values()]
    registers, spills = (max(used) for used in zip(*map(resources, found)))
    launched = [(k.name, k.grid, k.block, k.early) for k in kernels.known.values()]
    asked = max((k.room for k in kernels.known.values()), default=0)  # beyond the default shared memory of a block
    return {
        "kernels": len(launched), "digest": blake2b(b"".join(found) + repr(launched).encode(), digest_size=16).hexdigest(),
        "shared": asked, "registers": registers, "spills": spills, "fits": asked <= shared_per_block(capability),
    }  # fmt: skip


def answer(job: Mapping[str, Any]) -> dict[str, Any]:
    """Do one job (text, call, compute capability); returns the reply: the result of `compile_text`, or status and
    message of a failure, with the seconds it took."""
    began = time.monotonic()
    try:
        text, call = KernelText.of_json(job["text"]), call_of_json(job["call"])
        found = {"ok": True, **compile_text(text, call, int(job["capability"]))}
    except AsyncCopyRace as error:
        found = {"ok": False, "status": "race", "stage": "compile", "message": str(error)[:400]}
    except MemoryError as error:
        found = {"ok": False, "status": "memory", "stage": "compile", "message": f"memory ran out: {error}"[:400]}
    except Exception as error:
        message = f"{type(error).__name__}: {error}"[:400]
        found = {"ok": False, "status": "compile-error", "stage": "compile", "message": message}
    return {**found, "seconds": time.monotonic() - began}


WARM = """import torch
import triton
import triton.language as tl


@triton.jit
def nothing(out):
    tl.store(out, 0.0)


def run(out_, scratch):
    nothing[(1,)](out_)
"""


WARM_CUDA = 'extern "C" __global__ void nothing() {}'


def begin(capability: int) -> None:
    """Load the compilers and compile a trivial kernel for the compute capability, since the first compilation takes
    seconds.

    NVRTC is loaded in a second thread, which has ended when the function returns.
    """
    nvrtc = Thread(target=_load_nvrtc, args=(capability,), name="nvrtc")
    nvrtc.start()
    with contextlib.suppress(Exception):  # errors are reported by the first job
        one = Operand(Type((1,), "float32"), (1,))
        compile_text(KernelText(WARM, (), (), False, 0, True), Call({}, one, {}), capability)
    nvrtc.join()


def _load_nvrtc(capability: int) -> None:
    """Load NVRTC, if cuda-core is installed."""
    with contextlib.suppress(Exception):
        CudaKernel("nothing", 1, 1, text=WARM_CUDA).compiled(f"sm_{capability}")
