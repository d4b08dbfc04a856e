"""Declares Torch GPU kernels for attention: fused kernels, grouped queries as rows of one matrix, and unfused
attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...errors import UnsupportedError
from ...extract.model.kernel import Call, Strides
from ...extract.model.library_kernel import LibraryKernel, identify
from .numpy_products import masked_by_operand_only
from .numpy_rows import spell
from .torch_calls import HIDING, both, extents, heads_fit
from .torch_cuda_rows import FLOAT, halves, row

_ATTENTION = "scale=scale, causal=causal, window=window, softcap=softcap"


#: LibraryKernel suffix -> Torch's fused attention kernel; "" means Torch's own choice.
KERNELS = {
    "": "", "_single": "", "_flash": "FLASH_ATTENTION", "_cudnn": "CUDNN_ATTENTION", "_efficient": "EFFICIENT_ATTENTION",
}  # fmt: skip
# Of the layouts of queries, keys and values: those that their producers give, and row-major ones. Mixed ones of eight
# kernels each would be half of all candidates of a transformer; they copy one operand and leave another as it is.
COMBINATIONS = 3
SINGLE_RATE = 0.15  # fraction of the float32 GEMM rate that fused kernels reach on float32 (measured on an H200)


def _causal(call: Call) -> bool:
    """Whether the causal mask hides anything.

    With a single row the mask hides nothing, because the last row is aligned with the last column. A free number of
    rows is treated as more than one, which is right for one row as well.
    """
    return bool(call.attrs["causal"]) and extents(call.operands["q"])[-2] != 1


def _fusable(call: Call) -> bool:
    a, (q, k) = call.attrs, (extents(call.operands[n]) for n in "qk")
    square = not _causal(call) or (q[-2] == k[-2] and "m" not in call.operands)
    return not a["window"] and not a["softcap"] and square and len(q) in (3, 4, 5) and heads_fit(call) and _mask(call)


def _mask(call: Call) -> bool:
    m = call.operands.get("m")
    return m is None or m.type.rank < 5 or extents(m)[1:3] == (1, 1)


def _lines(call: Call) -> bool:
    """Whether operands are 16-bit with contiguous rows, of a width that the fused kernels support."""
    inputs = [call.operands[n] for n in "qkv"]
    widths = {extents(o)[-1] for o in inputs}
    fit = len(widths) == 1 and max(widths) <= 256 and max(widths) % 8 == 0
    return halves(call) and fit and all(o.strides[-1] == 1 for o in inputs)


def heads_inside(call: Call) -> Strides:
    """Strides of attention's result when all heads of a position are contiguous, as in [batch, T, heads, D]."""
    _, *heads, rows, width = extents(call.output)
    inner: list[int] = []
    step = width
    for size in reversed(heads):
        inner.insert(0, step)
        step *= size
    return (rows * step, *inner, step, 1)


def _named(call: Call, kernel: str) -> str:
    """Text of a fused kernel's name for a call. Raises UnsupportedError where a size is free for cuDNN, which makes a
    plan for each size in 0.05 to 0.2 s, and for Torch's own choice among 16-bit kernels, which may be cuDNN."""
    free = any(type(d) is not int for n in "qkv" for d in extents(call.operands[n]))
    if free and (kernel == "CUDNN_ATTENTION" or (not kernel and halves(call))):
        raise UnsupportedError("cuDNN's attention makes a plan for each size")
    return repr(kernel)


def _sdpa_code(kernel: str, rows: bool) -> Callable[[Call], str]:
    def code(call: Call) -> str:
        n = call.names
        return (f"attended({n['q']}, {n['k']}, {n['v']}, {n.get('m')}, {call.attrs['scale']}, {_causal(call)}, "
                f"{_named(call, kernel)}, {rows})")  # fmt: skip

    identify(code, f"torch_cuda_attention.sdpa[{kernel},{rows}]")
    return code


def _packable(call: Call) -> bool:
    """Whether the queries of a group can be rows of one matrix: there is a group axis, and the mask is the same for all
    rows."""
    q = extents(call.operands["q"])
    masked = "m" in call.operands and extents(call.operands["m"])[-2] != 1
    return len(q) == 5 and q[2] > 1 and not _causal(call) and not masked


def _grouped_code(kernel: str) -> Callable[[Call], str]:
    def code(call: Call) -> str:
        n = call.names
        return f"grouped({n['q']}, {n['k']}, {n['v']}, {n.get('m')}, {call.attrs['scale']}, {_named(call, kernel)})"

    identify(code, f"torch_cuda_attention.grouped[{kernel}]")
    return code


def attentions() -> list[LibraryKernel]:
    """Library kernels for attention that run Torch code on the GPU."""
    found = []
    spelling = "attention_spelled({q}, {k}, {v}, MASK, {scale}, {causal}, {window}, {softcap})"
    more: dict[str, Any] = {"family": "attention", "combinations": COMBINATIONS}
    for masked, pattern in (
        ("", f"attention(q, k, v, {_ATTENTION})"),
        ("_masked", f"masked_attention(q, k, v, m, {_ATTENTION})"),
    ):
        for suffix, kernel in KERNELS.items():
            if masked and suffix == "_flash":
                continue  # the kernel supports no masks
            own = _lines if kernel else (lambda call: not halves(call)) if suffix else halves
            fits = both(FLOAT, _fusable, own)
            more["rate"] = SINGLE_RATE if suffix == "_single" else 1.0
            shaped = both(fits, lambda call: call.output.type.rank in (4, 5))
            found += [
                row(f"sdpa{masked}{suffix}", pattern, _sdpa_code(kernel, rows=False), setup=("attended",), applies=fits, **more),
                row(f"sdpa{masked}{suffix}_rows", pattern, _sdpa_code(kernel, rows=True), setup=("attended",), applies=shaped,
                    layout=heads_inside, **more),
            ]  # fmt: skip
            found.append(row(f"sdpa{masked}_grouped{suffix}", pattern, _grouped_code(kernel), setup=("grouped",),
                             applies=both(fits, _packable), **more))  # fmt: skip
        text = spelling.replace("MASK", "{m}" if masked else "None")
        found.append(row(f"attention{masked}", pattern, spell(text), setup=("attention_spelled",),
                         applies=both(FLOAT, lambda call: not _fusable(call)), **more))  # fmt: skip
    found.append(row("attention_hiding", f"hiding_attention(q, k, v, h, {_ATTENTION})", spell(HIDING),
                     setup=("attention_hiding",), applies=masked_by_operand_only, **more))  # fmt: skip
    return found
