"""Runs the steps of a measurement once before the first kernel is measured, while the model is still being rewritten.

Otherwise the first kernels wait for libraries to be initialized and for PyTorch's own kernels, which the driver loads
one by one on their first launch, with the device locked for other processes.
"""

from __future__ import annotations

import contextlib
import gc
from functools import partial
from typing import Any

from ...egraph.ops.ops import Type
from ...extract.model.kernel import Call, Operand, contiguous
from ..generate.kernel_text import KernelText, module_of
from ..program.helpers.cuda_helpers import CudaKernel
from .compile_worker import WARM, WARM_CUDA
from .gpu_accuracy import accuracy
from .gpu_bench import Bench, reference
from .gpu_device import MeasuringDevice
from .loaded_kernel import LoadedKernel

#: Meanings of kernels with the ops of most models, as (pattern, types of operands, types of results).
REHEARSED: tuple[tuple[str, dict[str, tuple[str, tuple[int, ...]]], tuple[tuple[str, tuple[int, ...]], ...]], ...] = (
    (
        "mul(gelu_tanh(matmul(rms_norm(x, g, eps=1e-06), permute(w, perm=(1, 0)))), silu(y));add(x, x)",
        {"x": ("bfloat16", (8, 64)), "g": ("bfloat16", (64,)), "w": ("bfloat16", (32, 64)), "y": ("bfloat16", (8, 32))},
        (("bfloat16", (8, 32)), ("bfloat16", (8, 64))),
    ),
    (
        "masked_attention(rope(q, cos(mul(cast(at, dtype='float32'), a)), sin(mul(cast(at, dtype='float32'), a))), keys, "
        "scatter_elements(keys, broadcast_to(mod(at, full(value=64, shape=(1, 1, 1, 1), dtype='int64')), "
        "shape=(1, 1, 1, 32)), v, axis=2, mode='set'), where(lt(at, iota(axis=3, shape=(1, 1, 1, 64), dtype='int64')), "
        "full(value=-inf, shape=(1, 1, 1, 1), dtype='float32'), full(value=0.0, shape=(1, 1, 1, 1), dtype='float32')), "
        "scale=0.25, causal=False, window=0, softcap=0.0)",
        {
            "q": ("bfloat16", (1, 1, 4, 32)), "at": ("int64", (1, 1, 1, 1)), "a": ("float32", (1, 1, 1, 32)),
            "keys": ("bfloat16", (1, 1, 64, 32)), "v": ("bfloat16", (1, 1, 1, 32)),
        },
        (("bfloat16", (1, 1, 4, 32)),),
    ),
)  # fmt: skip


def rehearse(device: MeasuringDevice) -> None:
    """Initialize libraries, then open, check and time stand-ins for kernels (`REHEARSED`) on small operands."""
    import torch

    for dtype in (torch.bfloat16, torch.float64):
        x = torch.randn(64, 64, device=device.name).to(dtype)
        out = torch.empty_like(x)
        torch.mm(x, x, out=out)
        device.synchronize()
        device.laps(device.capture([partial(torch.mm, x, x, out=out)]), 2)
        accuracy(out, out.double(), "bfloat16")
    reference(device)()
    device.synchronize()
    for pattern, operands, results in REHEARSED:
        places = {n: Operand(Type(shape, dtype), contiguous(shape)) for n, (dtype, shape) in operands.items()}
        first, *more = (Operand(Type(shape, dtype), contiguous(shape)) for dtype, shape in results)
        bench = Bench(device, pattern, Call(places, first, {}, more=tuple(more)))
        bench.attempt(0, _stand_in(bench))


def load_kernels() -> None:
    """Load a trivial kernel of each compiler, from its cache as a rule: their first kernel takes seconds.

    Nothing is launched.
    """
    import torch

    with contextlib.suppress(Exception):
        module_of(KernelText(WARM, (), (), False, 0, True)).nothing.warmup(torch.float32, grid=(1,))._init_handles()
    from cuda.core import Device

    Device(torch.cuda.current_device()).set_current()
    major, minor = torch.cuda.get_device_capability()
    CudaKernel("nothing", 1, 1, text=WARM_CUDA).compiled(f"sm_{major}{minor}").get_kernel("nothing")
    gc.freeze()


def _stand_in(bench: Bench) -> LoadedKernel:
    """A kernel that writes the reference's values."""
    operands = tuple(bench.call.operands)

    def run(*arguments: Any) -> None:
        for out, want in zip(arguments[len(operands) : -1], bench.want, strict=True):
            out.copy_(want)

    return LoadedKernel(KernelText("", operands, (), False, 0, True), run, {})


__all__ = ["load_kernels", "rehearse"]
