"""Semantics of a kernel call: its template's pattern as a term over its operands."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...egraph.ir import dtypes
from ...egraph.ir.builders import param
from ...egraph.ir.graph import Tensor
from ...egraph.ir.ops import Type
from ...egraph.ir.pattern import Call as PatternCall
from ...egraph.ir.pattern import Term, Value, build, shared
from ...errors import ShapeError
from .kernel import Call

CARRIED = "float32"


def meaning(term: Term, call: Call, leaf: Callable[..., Tensor] = param) -> Tensor:
    """The pattern's term over leaves named like the operands.

    If storage dtypes of operands differ from the compute dtype (model/storage_dtypes.py), all floats are unified: they become
    float32, and casts between them disappear. ShapeError if the operands do not fit the pattern."""
    return meanings((term,), call, leaf)[0]


def meanings(terms: Sequence[Term], call: Call, leaf: Callable[..., Tensor] = param) -> list[Tensor]:
    """`meaning` for each output of a kernel, over the same leaves."""
    types = {name: o.type for name, o in call.operands.items()}
    try:
        return [build(term, _leaves(types, leaf), call.attrs) for term in terms]
    except ShapeError:
        if not any(dtypes.is_float(t.dtype) for t in types.values()):
            raise
    carried = {name: Type(t.shape, _carried(t.dtype)) for name, t in types.items()}
    attrs = {name: _carried(value) for name, value in call.attrs.items()}
    return [build(_alike(term), _leaves(carried, leaf), attrs) for term in terms]


def _leaves(types: Mapping[str, Type], leaf: Callable[..., Tensor]) -> dict[str, Tensor]:
    return {name: leaf(name, t.shape, t.dtype) for name, t in types.items()}


def _carried(value: Any) -> Any:
    return CARRIED if value in ("float16", "bfloat16", "float64") else value


def _alike(term: Term) -> Term:
    made: dict[int, Term] = {}
    for t in shared(term):
        made[id(t)] = t
        if isinstance(t, PatternCall):
            attrs = tuple((n, Value(_carried(a.value)) if isinstance(a, Value) else a) for n, a in t.attrs)
            made[id(t)] = PatternCall(t.op, tuple(made[id(a)] for a in t.args), attrs)
    return made[id(term)]
