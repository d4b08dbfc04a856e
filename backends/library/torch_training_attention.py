"""Declares Torch kernels of attention with the statistics that its gradients read, and of the gradients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

from ...egraph.types import dtypes
from ...extract.model.kernel import Call
from ...extract.model.library_kernel import LibraryKernel
from .torch_calls import Applies, both, extents, filled
from .torch_cuda_attention import heads_inside
from .torch_training_rows import Row, all_float, cpu_row, gpu_row


def _heads(call: Call) -> bool:
    """Condition on calls: query, key and value are [batch, heads, T, D] with equal widths, as fused attention needs;
    with a causal mask, which it aligns at the first position, also with equal lengths. Last axes are contiguous: fused
    attention does not look at their strides."""
    if any(o.strides[-1] != 1 for n, o in call.operands.items() if n != "s"):
        return False
    q, k, v = (extents(call.operands[n]) for n in "qkv")
    aligned = not call.attrs["causal"] or q[-2] == k[-2]
    return aligned and len(q) == 4 and q[:2] == k[:2] == v[:2] and q[-1] == v[-1]


def _wide_statistics(call: Call) -> bool:
    """Condition on calls: float32 or float64. Fused attention of 16-bit values has float32 statistics, which the CPU's
    rows do not state."""
    return call.output.type.dtype in ("float32", "float64")


_PLAIN, _ATTRS = "scale=scale, causal=causal", "scale=scale, causal=causal, window=0, softcap=0.0"
_ORDERS = {"query": "q, k, v", "key": "k, q, v", "value": "v, q, k"}


def _attention(
    row: Row, kernel: str, helpers: tuple[str, str], masks: Sequence[bool], applies: Applies
) -> Iterator[LibraryKernel]:
    """Attention with its statistics, and its gradients, by helpers that get the name `kernel`, if any, first.

    Libraries compute results in the layout [batch, T, heads, D]: the result may stay there, and gradients that are
    permuted to it, as those of projections are, need no copy.
    """
    first, ending = (f"{kernel!r}, ", f"_{kernel}") if kernel else ("", "")
    for masked, inside in product(masks, (False, True)):
        prefix, m, value = ("masked_", ", a", "{a}") if masked else ("", "", "None")
        rest = f"{value}, {{scale}}, {{causal}}, {inside})"
        more: dict[str, Any] = {"family": "attention", "applies": applies, "layout": heads_inside if inside else None}
        if kernel or not inside:  # on a CPU no other kernel writes this layout
            yield row(
                f"{prefix}attention_with_statistics{'_rows' * inside}{ending}",
                f"{prefix}attention(q, k, v{m}, {_ATTRS}); {prefix}attention_statistics(q, k{m}, {_PLAIN})",
                f"{helpers[0]}({first}{{q}}, {{k}}, {{v}}, {rest}", setup=(helpers[0], "with_heads", "aligned_mask"), **more,
            )  # fmt: skip
        terms = [f"{prefix}attention_gradient({o}, y, g, s{m}, of='{of}', {_PLAIN})" for of, o in _ORDERS.items()]
        terms = [f"permute({term}, perm=(0, 2, 1, 3))" if inside else term for term in terms]
        yield row(
            f"{prefix}attention_gradients{'_rows' * inside}{ending}", "; ".join(terms),
            f"{helpers[1]}({first}{{g}}, {{q}}, {{k}}, {{v}}, {{y}}, {{s}}, {rest}",
            setup=(helpers[1], "with_heads", "aligned_mask", *(["in_own_thread"] if kernel else [])), **{**more, "layout": None},
        )  # fmt: skip


def cpu_attentions() -> Iterator[LibraryKernel]:
    fits = both(all_float, filled, _heads, _wide_statistics)
    return _attention(cpu_row, "", ("attention_statistics", "attention_gradients"), (False, True), fits)


#: Fused attention of GPUs -> dtypes that it takes, and whether it takes a mask.
_FUSED: dict[str, tuple[tuple[str, ...], bool]] = {
    "efficient": (("float32", *dtypes.HALVES), True), "flash": (dtypes.HALVES, False), "cudnn": (dtypes.HALVES, False),
}  # fmt: skip


def _fused(kernel: str) -> Applies:
    """Make the condition on calls that a fused attention of GPUs, with float32 statistics, takes the operands."""
    kinds, _ = _FUSED[kernel]
    widest = 128 if kernel == "cudnn" else 256

    def condition(call: Call) -> bool:
        values = {
            o.type.dtype
            for n, o in call.buffers.items()
            if n not in "sa" and not (n == "out1" and "s" not in call.operands)
        }
        statistics = call.operands["s"] if "s" in call.operands else call.more[0]
        width = extents(call.operands["q"])[-1]
        single = kernel == "cudnn" and 1 in (extents(call.operands[n])[-2] for n in "qk")
        whole = all(s % 8 == 0 for n, o in call.operands.items() if n not in "sa" for s in o.strides[:-1])
        return (len(values) == 1 and values <= set(kinds) and statistics.type.dtype == "float32" and whole and not single
                and type(width) is int and width % 8 == 0 and width <= widest)  # fmt: skip

    return condition


def gpu_attentions() -> Iterator[LibraryKernel]:
    for kernel, (_, masks) in _FUSED.items():
        helpers, fits = ("fused_attention", "fused_attention_gradients"), both(filled, _heads, _fused(kernel))
        yield from _attention(gpu_row, kernel, helpers, (False, True) if masks else (False,), fits)
