"""Holds type laws (rules for a result's shape and dtype, given the operands') of leaves, elementwise ops, casts,
reductions and ops along one axis."""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import ShapeError
from ..types import dtypes
from .law_text import (
    D0,
    DTYPE_ID,
    S0,
    Cases,
    LawCase,
    axis_of,
    broadcast,
    broadcast_text,
    has_rank,
    replace,
    same_dtype,
    vec_get,
    vec_set,
)
from .ops import Attrs, Op, Type


def leaf(op: Op, types: tuple[Type, ...], attrs: Attrs) -> Type:
    """Type from the attributes `shape` and `dtype`."""
    return Type(attrs["shape"], attrs["dtype"])


def leaf_text(op: Op, ranks: Sequence[int]) -> Cases:
    """Yields the type law `leaf` as egglog text. It has one case: the result's shape and dtype are those in the op's
    attributes. `ranks` is not used."""
    yield LawCase("a_shape", "a_dtype")


def pointwise(op: Op, types: tuple[Type, ...], attrs: Attrs) -> Type:
    """Result type: broadcast shape, common dtype.

    Raises ShapeError if the operands do not fit.
    """
    return Type(broadcast(*(t.shape for t in types)), same_dtype(types))


def pointwise_text(op: Op, ranks: Sequence[int]) -> Cases:
    """Yields the type law `pointwise` as egglog text: one case, the broadcast shape of the operands and their dtype.
    `ranks` is not used."""
    yield from broadcast_text(op, D0)


def compare(op: Op, types: tuple[Type, ...], attrs: Attrs) -> Type:
    """Result type: broadcast shape, bool.

    Raises ShapeError if the operands do not fit.
    """
    same_dtype(types)
    return Type(broadcast(*(t.shape for t in types)), "bool")


def compare_text(op: Op, ranks: Sequence[int]) -> Cases:
    """Yields the type law `compare` as egglog text: one case, the broadcast shape of the operands and bool. `ranks` is
    not used."""
    yield from broadcast_text(op, str(DTYPE_ID["bool"]))


def where(op: Op, types: tuple[Type, ...], attrs: Attrs) -> Type:
    """Result type: broadcast shape; the condition is bool and the other two operands share a dtype.

    Raises ShapeError otherwise.
    """
    if types[0].dtype != "bool":
        raise ShapeError(f"the condition is {types[0].dtype}, not bool")
    return Type(broadcast(*(t.shape for t in types)), same_dtype(types[1:]))


def where_text(op: Op, ranks: Sequence[int]) -> Cases:
    """Yields the type law `where` as egglog text: one case, the broadcast shape of the operands and the second one's
    dtype. `ranks` is not used."""
    yield from broadcast_text(op, "(dt x1)")


def cast(op: Op, types: tuple[Type, ...], attrs: Attrs) -> Type:
    """Result type: same shape, dtype from the attribute."""
    return Type(types[0].shape, attrs["dtype"])


def cast_text(op: Op, ranks: Sequence[int]) -> Cases:
    """Yields the type law `cast` as egglog text: one case, the operand's shape and the dtype in the op's attribute.
    `ranks` is not used."""
    yield LawCase(S0, "a_dtype")


def from_float8(op: Op, types: tuple[Type, ...], attrs: Attrs) -> Type:
    """Result type: same shape, the float dtype from the attribute; the operand is uint8.

    Raises ShapeError otherwise.
    """
    if types[0].dtype != "uint8" or not dtypes.is_float(attrs["dtype"]):
        raise ShapeError(f"8-bit floats are uint8 and become floats, not {types[0].dtype} and {attrs['dtype']}")
    return cast(op, types, attrs)


def reduce(op: Op, types: tuple[Type, ...], attrs: Attrs) -> Type:
    """Result type: reduced axes become 1.

    Raises ShapeError if the operands do not fit.
    """
    shape = types[0].shape
    for axis in attrs["axes"]:
        shape = replace(shape, axis_of(axis, len(shape)), 1)
    return Type(shape, types[0].dtype)


def reduce_text(op: Op, ranks: Sequence[int]) -> Cases:
    """Yields the type law `reduce` (reduced axes get size 1, the dtype stays) as egglog text: one case for each number
    of reduced axes, from 0 to the largest of `ranks`, the operand ranks that may occur."""
    for count in range(max(ranks, default=0) + 1):
        shape = S0
        for i in range(count):
            shape = vec_set(shape, vec_get("a_axes", i), "1")
        yield LawCase(shape, D0, (has_rank("a_axes", count),))


def arg_reduce(op: Op, types: tuple[Type, ...], attrs: Attrs) -> Type:
    """Result type: the axis becomes 1; int64 indices.

    Raises ShapeError if the operands do not fit.
    """
    axis = axis_of(attrs["axis"], types[0].rank)
    if types[0].shape[axis] == 0 and 0 not in types[0].shape[:axis] + types[0].shape[axis + 1 :]:
        raise ShapeError(f"{op.name} needs an axis with elements: axis {axis} of {types[0]} has none")
    return Type(replace(types[0].shape, axis, 1), "int64")


def arg_reduce_text(op: Op, ranks: Sequence[int]) -> Cases:
    """Yields the type law `arg_reduce` as egglog text: one case, the operand's shape with the attribute's axis of size
    1, and int64. `ranks` is not used."""
    yield LawCase(vec_set(S0, "a_axis", "1"), str(DTYPE_ID["int64"]))


def along(op: Op, types: tuple[Type, ...], attrs: Attrs) -> Type:
    """Result type of an op along one axis: that of the operand; raises ShapeError if the axis does not exist."""
    axis_of(attrs["axis"], types[0].rank)
    return types[0]


def along_index(op: Op, types: tuple[Type, ...], attrs: Attrs) -> Type:
    """Result type of an op that gives indices along one axis (argsort): the operand's shape, int64.

    Raises ShapeError if the operands do not fit.
    """
    axis_of(attrs["axis"], types[0].rank)
    return Type(types[0].shape, "int64")


def along_index_text(op: Op, ranks: Sequence[int]) -> Cases:
    """Yields the type law `along_index` as egglog text: one case, the operand's shape, int64. `ranks` is not used."""
    yield LawCase(S0, str(DTYPE_ID["int64"]))


def same(op: Op, types: tuple[Type, ...], attrs: Attrs) -> Type:
    """Result type of an op that keeps the first operand's type; raises ShapeError if a named axis does not exist."""
    for axis in (*attrs.get("axes", ()), *((attrs["axis"],) if "axis" in attrs else ())):
        axis_of(axis, types[0].rank)
    return types[0]


__all__ = [
    "along",
    "along_index",
    "along_index_text",
    "arg_reduce",
    "arg_reduce_text",
    "cast",
    "cast_text",
    "compare",
    "compare_text",
    "from_float8",
    "leaf",
    "leaf_text",
    "pointwise",
    "pointwise_text",
    "reduce",
    "reduce_text",
    "same",
    "where",
    "where_text",
]
