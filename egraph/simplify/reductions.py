"""Holds the rules by which the graph simplification rewrites reductions and scans."""

from __future__ import annotations

from math import frexp
from typing import Any

from ..ir.tensor import Tensor, make
from ..ops.ops import OPS
from ..types.dims import volume
from .fills import fill
from .positions import any_of
from .simplifier import Simplifier


def simplify_reduction(s: Simplifier, op: str, args: tuple[Tensor, ...], attrs: dict[str, Any]) -> Tensor | None:
    """A reduction over fewer axes, or a constant in its place: axes of size 1 are left out, a max of a max (or a min of
    a min) is one reduction, and a max or min of equal elements is that element.

    In exact graphs sums stay: NumPy's sum of one element -0.0 is 0.0. None if nothing changes.
    """
    (x,), axes = args, attrs["axes"]
    if s.exact and OPS[op].linear:
        return None
    order = OPS[op].algebra == "order"
    kept = tuple(sorted({a for a in axes if x.shape[a] != 1}))
    if order and x.op == op:
        return s.build(op, x.args, {"axes": tuple(sorted({*x.attr("axes"), *kept}))})
    if order and x.op == "full" and volume(x.shape) != 0:
        return fill(make(op, args, attrs).shape, x.attr("value"), x.dtype)
    if kept == axes:
        return None
    return s.build(op, (x,), {"axes": kept}) if kept else x


def mean_of_whole_numbers(s: Simplifier, op: str, args: tuple[Tensor, ...], attrs: dict[str, Any]) -> Tensor | None:
    """The quotient of the sum and the count, in place of a mean whose rounding decides a whole number or a truth value:
    kernels of means multiply by the reciprocal, which makes no 3 of 36 / 12. None for other means."""
    (x,), n = args, volume(tuple(args[0].shape[a] for a in attrs["axes"]))
    if not s.at_sharp or not isinstance(n, int) or n < 2 or abs(frexp(n)[0]) == 0.5:
        return None
    total = s.build("sum", (x,), {"axes": attrs["axes"]})
    return make("div", (total, fill((1,) * x.rank, float(n), x.dtype)), {})


def any_of_positions(s: Simplifier, op: str, args: tuple[Tensor, ...], attrs: dict[str, Any]) -> Tensor | None:
    """Comparisons of bounds in place of `any` over a mask of positions; None for other masks."""
    (x,), axes = args, attrs["axes"]
    return any_of(x, axes[0], s.build) if x.dtype == "bool" and len(axes) == 1 else None


def along_one_element(s: Simplifier, op: str, args: tuple[Tensor, ...], attrs: dict[str, Any]) -> Tensor | None:
    """The operand of a cumulative sum or flip along an axis of size 1; None for longer axes."""
    (x,) = args
    return x if x.shape[attrs["axis"]] == 1 or (x.op == "full" and op == "flip") else None


__all__ = ["along_one_element", "any_of_positions", "mean_of_whole_numbers", "simplify_reduction"]
