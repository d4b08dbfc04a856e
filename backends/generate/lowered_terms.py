"""Lowers the terms of generated kernels for the layouts of their operands, and facts of lowered kernels."""

from __future__ import annotations

from collections.abc import Iterable

from ...egraph.ir.memo import memo
from ...egraph.ir.tensor import Tensor, topological
from ..ir.expr import walk
from ..ir.kernel import Buffer, Kernel
from ..ir.tiling import Shape, shape_of
from ..ir.unfusable import Unfusable
from ..lowering.ieee_decisions import rounded_once
from ..lowering.lower import kernel_of
from ..lowering.scale_motion import base_two, beside_softmax, scaled_early
from .emitter import Lowered, can_split


def all_float32(dtypes: Iterable[str]) -> bool:
    """Whether a kernel whose operands and results have these `dtypes` has floats, and all of them are float32: only in
    such kernels may tensor cores round the operands of products (to TF32)."""
    return {d for d in dtypes if d in ("float16", "bfloat16", "float32", "float64")} == {"float32"}


def multiplies_float32(kernel: Kernel, shape: Shape) -> bool:
    """Whether a kernel multiplies float32 matrices, whose elements tensor cores would round."""
    return all_float32(b.dtype for b in kernel.buffers.values()) and bool(shape.dots) and bool(shape.rows)


def is_right_strided(found: Lowered) -> bool:
    """Whether the right operand of a matrix product of the lowered kernel is not contiguous along K."""
    return any(
        e.op == "load" and dot.axis in e.axes and e.value[1].coefficient(dot.axis) != 1
        for dot, d in found.shape.dots.items()
        for side in d.right
        for e in walk([side])
    )


@memo(4096)
def lowered_terms(
    roots: tuple[Tensor, ...], buffers: tuple[tuple[str, Buffer], ...], contracts: bool
) -> tuple[Kernel, Shape, bool] | None:  # fmt: skip
    """Lower terms for given operand layouts to (kernel, shape, whether split reduction is legal).

    None if there is no kernel. `contracts`: of the emitter (`Emitter.contracts`). Otherwise the result is the same for
    every emitter and precision.
    """
    leaves = {t: str(t.attr("name")) for t in topological(roots) if t.op == "input"}
    try:
        kernel = scaled_early(base_two(beside_softmax(kernel_of(roots, leaves, dict(buffers)))))
        kernel = rounded_once(kernel) if contracts else kernel
        shape = shape_of(kernel, products="PIECES" not in kernel.builder.transformations)
        return kernel, shape, can_split(kernel, shape)
    except (Unfusable, RecursionError):  # RecursionError: deeper than `raise_recursion_limit` allows
        return None
