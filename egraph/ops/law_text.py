"""Defines the dataclasses that hold a type law (how an op's result shape and dtype follow from the operands' types),
helpers that write its egglog text, and checks that several laws share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from ...errors import ShapeError
from ..types import dtypes
from ..types.dims import Dim, Shape
from .ops import Attrs, Op, Type

#: recurrent cell -> (number of gate row blocks in its weights, number of activations).
GATES = {"lstm": (4, 3), "gru": (3, 2), "plain": (1, 1)}
BYTES = ("uint8", "int8")  # dtypes of quantized values
DTYPE_ID = {name: i for i, name in enumerate(dtypes.DTYPES)}  # egglog's ids of dtypes
Law = Callable[[Op, tuple[Type, ...], Attrs], Type]


class LawCase(NamedTuple):
    """One case of a type law (rule for an op's result type) in egglog: `shape` and `dtype` are egglog texts of the
    shape and the dtype of the result.

    `atoms`: query atoms that must match for the case to apply. `broadcasts`: pairs of shape texts that must be
    broadcast first.
    """

    shape: str
    dtype: str
    atoms: tuple[str, ...] = ()
    broadcasts: tuple[tuple[str, str], ...] = ()


Cases = Iterator[LawCase]
LawText = Callable[[Op, Sequence[int]], Cases]  # function of an op and the ranks of values that may occur


class TypeLaw(NamedTuple):
    """A type law (rule for an op's result shape and dtype): `infer` computes it in Python, `text` yields it in egglog.

    `least_rank`: least rank of the first operand. `keeps_rank`: whether all operands have the result's rank.
    """

    infer: Law
    text: LawText
    least_rank: int = 0
    keeps_rank: bool = False


#: egglog text of the operands' shapes and of the first one's dtype
S0, S1, S2, D0 = "(shape x0)", "(shape x1)", "(shape x2)", "(dt x0)"


def broadcast(*shapes: Shape) -> Shape:
    """The broadcast shape of shapes of equal rank; sizes of 1 stretch. Raises ShapeError if sizes do not match."""
    if len({len(s) for s in shapes}) != 1:
        raise ShapeError(f"operands have different ranks: {', '.join(map(str, shapes))}")
    found: list[Dim] = []
    for position, sizes in enumerate(zip(*shapes, strict=True)):
        wide = {d for d in sizes if d != 1} or {1}
        if len(wide) != 1:
            text = f"sizes {sizes} at axis {position} do not broadcast: {', '.join(map(str, shapes))}"
            raise ShapeError(text, sizes=sizes)
        found.append(wide.pop())
    return tuple(found)


def axis_of(axis: int, rank: int) -> int:
    """The argument `axis`, which must not be negative. Raises ShapeError unless 0 <= axis < rank."""
    if not 0 <= axis < rank:
        raise ShapeError(f"axis {axis} is outside a rank-{rank} value")
    return axis


def same_dtype(types: tuple[Type, ...]) -> str:
    """The common dtype of types; raises ShapeError if they differ."""
    if len({t.dtype for t in types}) != 1:
        raise ShapeError(f"operands have different dtypes: {', '.join(t.dtype for t in types)}", hint="cast them")
    return types[0].dtype


def replace(shape: Shape, axis: int, size: Dim) -> Shape:
    """The shape with another size along one axis."""
    return (*shape[:axis], size, *shape[axis + 1 :])


def vec_get(vector: str, i: int | str) -> str:
    """Egglog text of element `i` of a vector."""
    return f"(vec-get {vector} {i})"


def vec_set(vector: str, i: str, value: str) -> str:
    """Egglog text of a vector with element `i` replaced by `value`."""
    return f"(vec-set {vector} {i} {value})"


def has_rank(vector: str, rank: int) -> str:
    """Egglog text of the condition that a vector has `rank` elements."""
    return f"(= {rank} (vec-length {vector}))"


def vec_of(items: Iterable[str]) -> str:
    """Egglog text of the vector of `items`, egglog texts themselves."""
    return f"(vec-of {' '.join(items)})"


def broadcast_text(op: Op, dtype: str) -> Cases:
    """Yields the type law of an op whose result has the broadcast shape of all operands, as egglog text: one case.
    `dtype`: egglog text of the result's dtype."""
    found, pairs = S0, []
    for i in range(1, op.arity):
        pairs.append((found, f"(shape x{i})"))
        found = f"(bc {found} (shape x{i}))"
    yield LawCase(found, dtype, (), tuple(pairs))


def same_text(op: Op, ranks: Sequence[int]) -> Cases:
    """Yields the type law of an op whose result has the type of its first operand, as egglog text: one case. `ranks` is
    not used."""
    yield LawCase(S0, D0)


def check_index_dtype(kind: Type) -> None:
    """Raise ShapeError unless a type has an integer dtype."""
    if dtypes.category(kind.dtype) != "int":
        raise ShapeError(f"indices are {kind.dtype}, not integers")


__all__ = [
    "BYTES",
    "D0",
    "DTYPE_ID",
    "GATES",
    "S0",
    "S1",
    "S2",
    "Cases",
    "Law",
    "LawCase",
    "LawText",
    "TypeLaw",
    "axis_of",
    "broadcast",
    "broadcast_text",
    "check_index_dtype",
    "has_rank",
    "replace",
    "same_dtype",
    "same_text",
    "vec_get",
    "vec_of",
    "vec_set",
]
