"""Derives the pattern of a composite op at given ranks from its decomposition in the op table.

The decomposition runs on operands with symbolic sizes, and the tensors that it builds are read back as a pattern:
sizes become sizes of the first operand, and numbers that an attribute gives become the attribute.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...egraph.builders import builders as api
from ...egraph.ir.tensor import Tensor, topological
from ...egraph.ops.ops import Op
from ...egraph.patterns.pattern import PatternCall, Term, Var
from ...egraph.patterns.pattern_attrs import Apply, Attr, AttrConstant, Name
from ...egraph.patterns.pattern_parser import parse_guard
from ...egraph.types.dims import Dim, DimExpr, Shape, dim, symbols
from ...errors import TensorGraphsError
from ..semantics.solver import OutOfScope
from .unknowns import IllTyped

STAND_INS = (0.59375, 0.8125, 0.71875, 0.90625)  # two values for each of up to two attributes that are floats
LEAST_RANK = {"norm": 1, "channel_norm": 2, "rope": 1, "attention": 2}  # law of several operands -> of the first
VECTORS = {"norm": -1, "channel_norm": 1}  # law -> axis of the first operand whose size the other operands have


def names_of(entry: Op) -> list[str]:
    """Names of the operands in the pattern of a composite op: x0, x1, ..."""
    return [f"x{n}" for n in range(entry.arity)]


def size_name(axis: int) -> str:
    """Name, in the pattern of a composite op, of a size of the first operand."""
    return f"size{axis}"


def pattern_of(entry: Op, ranks: Sequence[int], attrs: Mapping[str, Any]) -> Term:
    """The decomposition of a composite op at operands of these ranks, as a pattern whose variables are `names_of`, the
    sizes of the first operand (`size_name`) and the attributes that are floats.

    `attrs`: values of all attributes; a float may be an unknown of any type. Raises OutOfScope for a law whose
    operands' sizes are not known, and where the decomposition depends on an unknown in another way than as a number in
    it; IllTyped for ranks that the law does not permit.
    """
    unknown = [n for n, value in attrs.items() if not isinstance(value, int | float | str | tuple)]
    if len(unknown) > 2 or any(entry.attrs[n] != "float" for n in unknown):
        raise OutOfScope(f"{entry.name} with unknown attributes: {', '.join(unknown)}")
    given = [attrs[n] for n in ("axis", "axes") if n in attrs]
    axes = [axis for one in given for axis in (one if isinstance(one, tuple) else (one,))]
    if not all(isinstance(axis, int) for axis in axes):
        raise OutOfScope("an unknown axis")
    if not all(0 <= axis < ranks[0] for axis in axes):
        raise IllTyped
    first, second = (_traced(entry, ranks, attrs, dict(zip(unknown, STAND_INS[turn::2]))) for turn in (0, 1))
    if first != second:
        raise OutOfScope(f"{entry.name} computes with an attribute")
    return first


def _traced(entry: Op, ranks: Sequence[int], attrs: Mapping[str, Any], numbers: Mapping[str, float]) -> Term:
    """The pattern of a decomposition that ran with `numbers` in place of unknown attributes."""
    assert entry.decompose is not None
    operands = [api.input(n, shape) for n, shape in zip(names_of(entry), operand_shapes(entry.law, ranks))]
    try:
        root = entry.decompose(*operands, **{**attrs, **numbers})
    except (TensorGraphsError, TypeError, ValueError, IndexError) as error:
        raise OutOfScope(f"{entry.name} at unknown sizes: {error}") from None
    known = {value: name for name, value in numbers.items()}
    made: dict[Tensor, Term] = {}
    for t in topological([root]):
        made[t] = _term(t, [made[a] for a in t.args], known, ranks[0])
    return made[root]


def operand_shapes(law: str, ranks: Sequence[int]) -> list[Shape]:
    """Shapes of a composite op's operands. Raises OutOfScope for an unknown law of several operands, IllTyped for ranks
    that the law does not permit."""
    rank = ranks[0]
    first: Shape = tuple(_any_size(size_name(axis)) for axis in range(rank))
    if len(ranks) == 1:
        return [first]
    if law not in LEAST_RANK:
        raise OutOfScope(f"operands of the law {law}")
    if set(ranks[1:]) != {1 if law in VECTORS else rank} or rank < LEAST_RANK[law]:
        raise IllTyped
    if law in VECTORS:
        return [first, *((first[VECTORS[law]],) for _ in ranks[1:])]
    if law == "attention":
        *_, m, d = first
        n, e = _any_size("keys"), _any_size("columns")
        ends: list[tuple[Any, Any]] = [(m, d), (n, d), (n, e), (m, n)]
        return [(*first[:-2], *end) for end in ends[: len(ranks)]]
    return [first, *((1,) * r for r in ranks[1:])]


def _any_size(name: str) -> Dim:
    return dim(name, min=0, max=1 << 62)


def _term(t: Tensor, args: Sequence[Term], known: Mapping[float, str], rank: int) -> Term:
    """One tensor of a decomposition as a pattern; `known`: value of an attribute -> its name. `rank`: of the first
    operand."""
    if t.op == "input":
        return Var(t.attr("name"))
    if t.op == "where" and t.args[0].op == "is_inf":  # proofs are about real numbers
        return args[2]
    if t.op == "full":
        value = t.attr("value")
        number = Name(known[value]) if value in known else AttrConstant(value)
        dtype = Apply("dtype", (Name("x0"),))
        return PatternCall("full", (), (("value", number), ("shape", _attr(t.attr("shape"), rank)), ("dtype", dtype)))
    if "dtype" in t.entry.attrs or not args:
        raise OutOfScope(f"{t.op} in a decomposition")
    return PatternCall(t.op, tuple(args), tuple((n, _attr(t.attr(n), rank)) for n in t.entry.attrs))


def _attr(value: Any, rank: int) -> Attr:
    """An attribute of a tensor as an expression over the sizes of the first operand, whose rank is given."""
    if isinstance(value, tuple):
        return Apply("vec", tuple(_attr(item, rank) for item in value))
    if isinstance(value, DimExpr):
        if not symbols(value).keys() <= {size_name(axis) for axis in range(rank)}:
            raise OutOfScope("a size of another operand than the first")
        return parse_guard(str(value))
    return AttrConstant(value)


__all__ = ["VECTORS", "names_of", "pattern_of", "size_name"]
