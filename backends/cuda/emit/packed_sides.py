"""Recognizes right operands of skinny GEMM that are quantized weights: codes with one zero point and one scale for all
numbers in 16 bytes."""

from __future__ import annotations

from dataclasses import dataclass

from ...ir.expr import Expr, factors, walk
from ...ir.index import Axis
from ...ir.kernel import Kernel
from ...ir.tiling import Dot, Shape
from .code_forms import BYTES, CodeForm, code_form
from .fragment_frame import CHUNK, WIDTH
from .thread_layout import stride_in_runs

ROW = CHUNK // WIDTH  # threads that hold neighbouring vectors along K


@dataclass(frozen=True)
class PackedSide:
    """The right operand of a matrix product with quantized weights. `form`: encoding of the numbers and the load of
    their codes (bytes).

    `zero` is subtracted from each number and `scale` multiplied, each one value for all numbers in 16 bytes of codes;
    None if absent.
    """

    form: CodeForm
    zero: Expr | None
    scale: Expr | None

    @property
    def values(self) -> list[Expr]:
        """The loads from which the zero point and the scale are computed."""
        return [x for e in (self.zero, self.scale) if e is not None for x in walk([e]) if x.op == "load"]

    def grouped(self, axis: Axis) -> bool:
        """Whether zero point and scale are applied to sums of products along `axis` (K) instead of to each number:
        4-bit codes, and one value for all numbers that four neighbouring threads hold."""
        width = ROW * self.form.span
        return self.form.name == "nibbles" and all(
            _is_uniform(e, axis, width) for e in (self.zero, self.scale) if e is not None
        )


def packed_side(kernel: Kernel, dot: Dot, axis: Axis) -> PackedSide | None:
    """The right operand of the product `dot` along `axis` (K) as quantized codes with one zero point and one scale per
    16 bytes; None if it is stored in another way."""
    over, under = factors(kernel.builder.product((*dot.right, *bare_factors(dot)), ()))
    moving = [f for f in over if not _is_uniform(f, axis, BYTES)]
    if under or not moving:
        return None
    number, zero = kernel.builder.product(moving, ()), None
    form = code_form(number, axis)
    if form is None and number.op == "sub":
        (number, zero), form = number.args, code_form(number.args[0], axis)
    if form is None:
        return None
    steady = [f for f in over if f not in moving]
    scale = kernel.builder.product(steady, ()) if steady else None
    values = [e for e in (zero, scale) if e is not None]
    return PackedSide(form, zero, scale) if all(_is_uniform(e, axis, form.span) for e in values) else None


def bare_factors(dot: Dot) -> list[Expr]:
    """Factors of a product's left operand that read no memory; they belong to the decoding of 4-bit codes."""
    return [f for f in dot.left if all(x.op != "load" for x in walk([f]))]


def _is_uniform(e: Expr, axis: Axis, width: int) -> bool:
    """Whether an expression is constant over each aligned run of `width` elements along an axis: its loads are, and it
    has no index expressions or reductions."""
    return all(
        stride_in_runs(x.value[1], axis, width) == 0 and not x.args
        if x.op == "load"
        else x.op not in ("reduce", "index")
        for x in walk([e])
    )


def sides_of(kernel: Kernel, shape: Shape, axis: Axis) -> list[PackedSide | None]:
    """For each matrix product of `kernel` along `axis`, its quantized right operand; None for a product without one."""
    return [packed_side(kernel, d, axis) for e, d in shape.dots.items() if e.axis == axis]


def span_of(kernel: Kernel, shape: Shape, axis: Axis) -> int:
    """How many quantized numbers 16 bytes hold in the right operands of the kernel's matrix products along `axis`: 16
    or 32.

    0 if a product's right operand is not quantized, or if products differ.
    """
    spans = {s.form.span if s is not None else 0 for s in sides_of(kernel, shape, axis)}
    return spans.pop() if len(spans) == 1 else 0


__all__ = ["PackedSide", "bare_factors", "packed_side", "sides_of", "span_of"]
