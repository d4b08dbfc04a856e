"""Functions that translate ONNX reductions, arg-reductions, cumulative sums and products, and top-k."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...egraph.builders import builders as t
from ...egraph.composites import composite_ops as c
from ...egraph.ir.tensor import Tensor
from ...egraph.types import dtypes
from ...egraph.types.dims import volume
from ...errors import ShapeError
from ..common.sampling import running
from ..common.sizes import size_tensor
from .node import Node, Result, operator, resolve

Fold = Callable[[Tensor, tuple[int, ...]], Tensor]


def _mean(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    if dtypes.is_float(x.dtype):
        return t.mean(x, axes, True)
    return t.cast(t.mean(t.cast(x, "float64"), axes, True), x.dtype)


def _in_float(fold: Fold) -> Fold:
    """Return a reduction that computes in float64 for integers and casts the result back, as ONNX specifies."""

    def run(x: Tensor, axes: tuple[int, ...]) -> Tensor:
        return fold(x, axes) if dtypes.is_float(x.dtype) else t.cast(fold(t.cast(x, "float64"), axes), x.dtype)

    return run


def _sum(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    return t.sum(x, axes, True, x.dtype)


_FOLDS: dict[str, Fold] = {
    "ReduceSum": _sum,
    "ReduceProd": lambda x, axes: t.prod(x, axes, True, x.dtype),
    "ReduceMax": lambda x, axes: t.max(x, axes, True),
    "ReduceMin": lambda x, axes: t.min(x, axes, True),
    "ReduceMean": _mean,
    "ReduceL1": lambda x, axes: _sum(t.abs(x), axes),
    "ReduceL2": _in_float(lambda x, axes: t.sqrt(t.sum(x * x, axes, True))),
    "ReduceSumSquare": lambda x, axes: _sum(x * x, axes),
    "ReduceLogSum": _in_float(lambda x, axes: t.log(t.sum(x, axes, True))),
    "ReduceLogSumExp": _in_float(lambda x, axes: c.logsumexp(x, axes=axes)),
}


def _of_nothing(op: str, dtype: str) -> float:
    """Return the result of a reduction over zero elements."""
    if op in ("ReduceMax", "ReduceMin"):
        sign = -1.0 if op == "ReduceMax" else 1.0
        if dtypes.is_float(dtype):
            return sign * float("inf")
        if dtype == "bool":
            return float(sign > 0)
        limits = np.iinfo(dtype)
        return int(limits.min if sign < 0 else limits.max)
    return {"ReduceProd": 1.0, "ReduceLogSum": float("-inf"), "ReduceLogSumExp": float("-inf"),
            "ReduceMean": float("nan")}.get(op, 0.0)  # fmt: skip


@operator(*_FOLDS)
def _reduce(n: Node) -> Result:
    x, keep = n.x(), bool(n.attr("keepdims", 1))
    axes = n.axes(1, x.rank)
    if not axes:
        axes = () if n.attr("noop_with_empty_axes", 0) else tuple(range(x.rank))
    axes = tuple(sorted(axes))
    if not axes:  # no reduction: only the elementwise part remains
        return x if n.op in ("ReduceMean", "ReduceLogSumExp") else _FOLDS[n.op](x, ())
    kept = tuple(1 if i in axes else d for i, d in enumerate(x.shape))
    if volume(tuple(x.shape[a] for a in axes)) == 0:
        folded = t.full(kept, _of_nothing(n.op, x.dtype), x.dtype)
    else:
        folded = _FOLDS[n.op](x, axes)
    return folded if keep else t.squeeze(folded, axes)


@operator("ArgMax", "ArgMin")
def _arg(n: Node) -> Result:
    x = n.x()
    axis = n.axis(0, x.rank)
    if x.shape[axis] == 0:
        kept = [1 if i == axis else d for i, d in enumerate(x.shape) if i != axis or n.attr("keepdims", 1)]
        if 0 not in kept:
            raise ShapeError(f"axis {axis} of {x.type} has no element to choose")
        return t.zeros(kept, "int64")
    build = t.argmax if n.op == "ArgMax" else t.argmin
    if not n.attr("select_last_index", 0):
        return build(x, axis, bool(n.attr("keepdims", 1)))
    last = t.reshape(size_tensor(x.shape[axis] - 1), (1,) * x.rank)
    found = t.sub(last, build(t.flip(x, axis), axis, True))
    return found if n.attr("keepdims", 1) else t.squeeze(found, axis)


@operator("CumSum", "CumProd")
def _running(n: Node) -> Result:
    x = n.x()
    (axis,) = n.ints(1)
    axis = resolve(axis, x.rank)
    x = t.flip(x, axis) if n.attr("reverse", 0) else x
    total = t.cumsum(x, axis, x.dtype) if n.op == "CumSum" else running(x, axis, t.mul, 1)
    if n.attr("exclusive", 0):  # shifted by one step; computing total - x would cancel
        widths = [(int(i == axis), 0) for i in range(x.rank)]
        total = t.slice_axis(t.pad(total, widths, float(n.op == "CumProd")), axis, 0, x.shape[axis])
    return t.flip(total, axis) if n.attr("reverse", 0) else total


@operator("TopK", limits="k that depends on data")
def _topk(n: Node) -> Result:
    x = n.x()
    axis = n.axis(-1, x.rank)
    (count,) = n.dims(1)
    order = t.slice_axis(t.argsort(x, axis, bool(n.attr("largest", 1))), axis, 0, count)
    return [t.gather_elements(x, order, axis), order]
