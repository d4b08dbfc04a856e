"""The child process that compiles generated kernels without launching them, on any machine, and says what they use.

The module of a kernel text is run on tensors without memory, while Triton believes in a GPU of the architecture asked for:
each launch compiles into Triton's cache on disk, and nothing runs. A compiler that crashes or hangs takes this process
with it, which costs one schedule.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
from collections.abc import Mapping
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

from .kernel_text import KernelText, call_of_json, module_of
from .measure_worker import main
from .torch_reference import torch_dtype

SHARED_BYTES = {80: 166_912, 86: 101_376, 89: 101_376, 90: 232_448, 100: 232_448, 103: 232_448, 120: 101_376}
"""Shared memory that one block can have, by architecture."""

_USAGE = re.compile(r"REG:(\d+) STACK:(\d+)")
_launched: list[tuple[Any, Any, tuple[Any, ...]]] = []  # compiled kernel, grid, scalar arguments


@cache
def prepare(capability: int) -> None:
    """Let Triton believe in a GPU of this architecture (90 is sm_90), and compile where it would launch."""
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    class Believed:
        def get_current_target(self) -> Any:
            return GPUTarget("cuda", capability, 32)

        def get_current_device(self) -> int:
            return 0

        def get_current_stream(self, device: int = 0) -> int:
            return 0

    compiled = JITFunction.run

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        made = compiled(self, *args, grid=grid, warmup=True, **options)
        scalars = tuple(a for a in args if isinstance(a, int | float | bool))
        shape = grid if not callable(grid) else grid({**dict(zip(self.arg_names, args)), **options})
        _launched.append((made, tuple(shape), scalars))
        return made

    driver.set_active(Believed())
    JITFunction.run = run


@cache
def _cuobjdump() -> str:
    import triton

    found = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    return str(found) if found.exists() else "cuobjdump"


def resources(cubin: bytes) -> tuple[int, int]:
    """(registers, bytes of stack a thread spills to) of a binary; zeros where it cannot be read."""
    import tempfile

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        try:
            shown = subprocess.run([_cuobjdump(), "--dump-resource-usage", file.name], capture_output=True, text=True,
                                   timeout=20).stdout  # fmt: skip
        except (OSError, subprocess.SubprocessError):
            return 0, 0
    found = [tuple(map(int, pair)) for pair in _USAGE.findall(shown)]
    return max((r for r, _ in found), default=0), max((s for _, s in found), default=0)


def compile_text(text: KernelText, call: Any, capability: int) -> dict[str, Any]:
    """Compile every kernel that the text launches; their largest needs, and a digest of what would be launched."""
    import torch

    prepare(capability)
    _launched.clear()
    module = module_of(text)

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
        used = resources(binary)
        shared, registers, spills = max(shared, kernel.metadata.shared), max(registers, used[0]), max(spills, used[1])
        digest.update(binary)
        digest.update(repr((grid, scalars, kernel.metadata.shared, kernel.metadata.num_warps)).encode())
    return {
        "kernels": len(_launched), "digest": digest.hexdigest(), "shared": shared, "registers": registers,
        "spills": spills, "fits": shared <= SHARED_BYTES.get(capability, 101_376),
    }  # fmt: skip


def answer(job: Mapping[str, Any]) -> dict[str, Any]:
    """The reply to one job: a text, its call, and the architecture."""
    try:
        text, call = KernelText.of_json(job["text"]), call_of_json(job["call"])
        return {"ok": True, **compile_text(text, call, int(job["capability"]))}
    except Exception as error:
        message = f"{type(error).__name__}: {error}"[:400]
        return {"ok": False, "status": "compile-error", "stage": "compile", "message": message}


def begin() -> None:
    """Load the compiler while the parent has other things to do."""
    with contextlib.suppress(ImportError):
        import torch
        import triton

        assert torch and triton


if __name__ == "__main__":
    main(answer, begin)
