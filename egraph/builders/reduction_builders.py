"""Functions that build reductions and scans along axes: sums, extrema, means, indices of extrema, sorting."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ..ir.tensor import Tensor, make
from ..ops.ops import OPS
from ..types import dtypes
from ..types.axes import axes_of, axis_of
from ..types.dims import Dim, DimExpr, Shape, volume
from .elementwise_builders import div, maximum, mul, square, sub
from .leaf_builders import ones
from .operand_alignment import as_tensor, cast, reshape


def _squeezed(x: Tensor, axes: tuple[int, ...], keepdims: bool) -> Tensor:
    return x if keepdims else reshape(x, tuple(d for i, d in enumerate(x.shape) if i not in axes))


def _reduction(name: str) -> Callable[..., Tensor]:
    def build(x: Tensor, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
        x = as_tensor(x)
        axes = axes_of(axis, x.rank)
        return _squeezed(make(name, (x,), {"axes": axes}) if axes else x, axes, keepdims)

    build.__name__, build.__doc__ = name, OPS[name].doc
    return build


def _total(name: str) -> Callable[..., Tensor]:
    fold = _reduction(name)

    def build(
        x: Tensor, axis: int | Sequence[int] | None = None, keepdims: bool = False, dtype: Any = None
    ) -> Tensor:  # fmt: skip
        x = as_tensor(x)
        return fold(cast(x, dtypes.summed(x.dtype) if dtype is None else dtype), axis, keepdims)

    build.__name__ = name
    build.__doc__ = f"{OPS[name].doc}; of integers and bools in 64 bits unless `dtype` names another"
    return build


sum, prod = _total("sum"), _total("prod")
max, min = _reduction("max"), _reduction("min")


def all(x: Tensor, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
    """Whether all elements are true (logical and over axes)."""
    return min(cast(as_tensor(x), "bool"), axis, keepdims)


def any(x: Tensor, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
    """Whether any element is true (logical or over axes)."""
    return max(cast(as_tensor(x), "bool"), axis, keepdims)


def count(shape: Shape, axes: Sequence[int]) -> Dim:
    """Number of elements that a reduction over some axes of a shape combines into one result."""
    return volume(tuple(shape[a] for a in axes))


def mean(x: Tensor, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
    """Mean over axes (all without `axis`), which are removed unless `keepdims`. Integers are averaged as float32."""
    x = as_tensor(x)
    axes = axes_of(axis, x.rank)
    x = x if dtypes.is_float(x.dtype) else cast(x, "float32")
    return _squeezed(make("mean", (x,), {"axes": axes}) if axes else x, axes, keepdims)


def var(x: Tensor, axis: int | Sequence[int] | None = None, keepdims: bool = False, correction: float = 0) -> Tensor:
    """Variance over axes; divides by n - correction, or by 0 if that is negative."""
    axes = axes_of(axis, x.rank) if x.rank else ()
    n = count(x.shape, axes)
    centred = sub(x, mean(x, axes, True))
    if isinstance(n, DimExpr):
        if not correction:
            return mean(square(centred), axes, keepdims)
        left = maximum(sub(cast(sum(ones((n,), "int64")), x.dtype), correction), 0.0)
        return div(sum(square(centred), axes, keepdims), left)
    scale = 1.0 / (n - correction) if n > correction else math.inf
    return _squeezed(mul(sum(square(centred), axes, True), scale), axes, keepdims)


def argmax(x: Tensor, axis: int, keepdims: bool = False) -> Tensor:
    """Index (int64) of the first maximum along `axis`, which is removed unless `keepdims`."""
    a = axis_of(axis, x.rank)
    return _squeezed(make("argmax", (x,), {"axis": a}), (a,), keepdims)


def argmin(x: Tensor, axis: int, keepdims: bool = False) -> Tensor:
    """Index (int64) of the first minimum along `axis`, which is removed unless `keepdims`."""
    a = axis_of(axis, x.rank)
    return _squeezed(make("argmin", (x,), {"axis": a}), (a,), keepdims)


def cumsum(x: Tensor, axis: int, dtype: Any = None) -> Tensor:
    """Cumulative sum. Integers and bools are summed in 64 bits unless `dtype` is given."""
    x = cast(x, dtypes.summed(x.dtype) if dtype is None else dtype)
    return make("cumsum", (x,), {"axis": axis_of(axis, x.rank)})


def argsort(x: Tensor, axis: int = -1, descending: bool = False) -> Tensor:
    """Indices that sort an axis (stable)."""
    return make("argsort", (x,), {"axis": axis_of(axis, x.rank), "descending": descending})


__all__ = ["all", "any", "argmax", "argmin", "argsort", "cumsum", "max", "mean", "min", "prod", "sum", "var"]
