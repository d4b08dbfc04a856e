"""Lowers boolean-mask reads and writes, `x[mask] = f(y[mask])`: NonZero with GatherND and ScatterND.

The number of selected values depends on data. Therefore f is computed at all positions, and the results are written
where the mask holds. This works if only elementwise operators and scalars are applied to the selected values; any other
use of them is unsupported.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod

from ...egraph.builders import builders as t
from ...egraph.ir.tensor import Tensor
from ...egraph.types.dims import concrete
from .node import OPERATORS, Node
from .values import MaskedValues, MaskPositions, Value

#: Operators whose results have one element per element of the (broadcast) operands.
ELEMENTWISE = frozenset((
    "Abs", "Add", "Cast", "CastLike", "Ceil", "Clip", "Cos", "Div", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish",
    "Identity", "LeakyRelu", "Log", "Max", "Min", "Mod", "Mul", "Neg", "Pow", "Reciprocal", "Relu", "Round", "Selu", "Sigmoid",
    "Sign", "Sin", "Softplus", "Softsign", "Sqrt", "Sub", "Sum", "Tan", "Tanh",
))  # fmt: skip


def masked_value(n: Node) -> Value | None:
    """Translate a node that has mask positions or masked values among its operands, and return its result; None for
    other nodes."""
    build = _BUILD.get(n.op, _elementwise if n.op in ELEMENTWISE else None)
    return None if build is None else build(n)


def _of(n: Node, position: int) -> Value | None:
    return n.inputs[position] if n.has(position) else None


def _is_one(x: Value | None) -> bool:
    """Return whether a value is a tensor with one element."""
    return isinstance(x, Tensor) and all(isinstance(d, int) for d in x.shape) and prod(concrete(x.shape)) == 1


def _non_zero(n: Node) -> Value | None:
    if n.known(0) is not None:
        return None
    x = n.x(0)
    return MaskPositions(x if x.dtype == "bool" else t.ne(x, 0), transposed=False)


def _transpose(n: Node) -> Value | None:
    x = _of(n, 0)
    if not isinstance(x, MaskPositions):
        return None
    transposed = tuple(n.attr("perm", (1, 0))) == (1, 0)
    return replace(x, transposed=x.transposed != transposed)


def _expand(n: Node) -> Value | None:
    """Expand of a scalar to the (data-dependent) number of selected values: only the scalar is kept."""
    x = _of(n, 0)
    if isinstance(x, MaskedValues):
        return x
    if n.known(1) is not None or not _is_one(x):
        return None
    return MaskedValues(t.reshape(n.x(0), ()), None)


def _reshape(n: Node) -> Value | None:
    x, shape = _of(n, 0), n.known(1)
    return x if isinstance(x, MaskedValues) and shape is not None and shape.tolist() == [-1] else None


def _elementwise(n: Node) -> Value | None:
    picked = [v for v in n.inputs if isinstance(v, MaskedValues)]
    masks = {v.mask for v in picked if v.mask is not None}
    if (
        not picked
        or len(masks) > 1
        or not all(v is None or isinstance(v, MaskedValues) or _is_one(v) for v in n.inputs)
    ):
        return None
    numbers = [
        v.full if isinstance(v, MaskedValues) else t.reshape(v, ()) if isinstance(v, Tensor) else v for v in n.inputs
    ]
    found = OPERATORS[n.op].build(replace(n, inputs=numbers))
    assert isinstance(found, Tensor)
    return MaskedValues(found, next(iter(masks), None))


def _gather(n: Node) -> Value | None:
    places = _of(n, 1)
    if not isinstance(places, MaskPositions) or not places.transposed or n.attr("batch_dims", 0):
        return None
    x = n.x(0)
    if x.shape != places.mask.shape:
        raise n.unsupported("at data-dependent indices from a mask of another shape")
    return MaskedValues(x, places.mask)


_WRITE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "none": lambda x, u: u, "add": t.add, "mul": t.mul, "max": t.maximum, "min": t.minimum,
}  # fmt: skip


def _scatter(n: Node) -> Value | None:
    places, updates = _of(n, 1), _of(n, 2)
    if not isinstance(places, MaskPositions) or not places.transposed or not isinstance(updates, MaskedValues):
        return None
    x = n.x(0)
    if x.shape != places.mask.shape or (updates.mask is not None and updates.mask is not places.mask):
        raise n.unsupported("at data-dependent indices from another mask")
    return t.where(places.mask, _WRITE[n.choice("reduction", *_WRITE)](x, updates.full), x)


_BUILD: dict[str, Callable[[Node], Value | None]] = {
    "NonZero": _non_zero, "Transpose": _transpose, "Expand": _expand, "Reshape": _reshape, "GatherND": _gather,
    "ScatterND": _scatter,
}  # fmt: skip

__all__ = ["ELEMENTWISE", "masked_value"]
