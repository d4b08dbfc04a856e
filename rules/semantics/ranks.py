"""Lower bounds on the ranks of a rule's variables and subterms, and the subterms that must be floats or integers."""

from __future__ import annotations

from collections.abc import Sequence

from ...egraph.ops.ops import OPS
from ...egraph.ops.type_laws import LAWS
from ...egraph.patterns.pattern import Literal, PatternCall, Term, Var
from ...egraph.patterns.pattern_attrs import Apply, Attr, AttrConstant, Name
from ...egraph.types import dtypes


def least_ranks(guards: Sequence[Attr]) -> dict[str, int]:
    """The lowest rank of each variable at which the axes named by number in guards exist."""
    found: dict[str, int] = {}
    stack = list(guards)
    while stack:
        attr = stack.pop()
        if isinstance(attr, Apply):
            stack += attr.args
            if attr.function == "size":
                variable, axis = attr.args
                if isinstance(variable, Name) and isinstance(axis, AttrConstant):
                    need = axis.value + 1 if axis.value >= 0 else -axis.value
                    found[variable.name] = max(found.get(variable.name, 0), need)
    return found


def needs_float(term: Term, floating: set[str]) -> bool:
    """Whether a subterm must have a floating dtype, given the names of the variables that must (`floating`)."""
    if isinstance(term, Var):
        return term.name in floating
    if isinstance(term, Literal):
        return term.value != term.value or abs(term.value) == float("inf") or term.value != int(term.value)
    entry = OPS[term.op]
    if entry.law in ("compare", "arg_reduce", "along_index", "cast", "leaf"):
        return False
    args = term.args[1:] if entry.law == "where" else term.args[:1] if entry.kind == "index" else term.args
    return entry.floats_only or any(needs_float(a, floating) for a in args)


def least_rank(term: Term) -> int:
    """A lower bound on a subterm's rank that follows from its ops."""
    if not isinstance(term, PatternCall):
        return 0
    law = LAWS[OPS[term.op].law]
    return int(max([law.least_rank, *(map(least_rank, term.args) if law.keeps_rank else ())]))


def is_int(dtype: str) -> bool:
    """Whether a dtype is an integer dtype."""
    return dtypes.category(dtype) == "int"
