"""Computes the meaning of a kernel call: for each output, one term over the call's operands."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...egraph.builders.builders import param
from ...egraph.ir.tensor import Tensor
from ...egraph.ops.ops import Type
from ...egraph.patterns.pattern import PatternCall, Term, build, shared
from ...egraph.patterns.pattern_attrs import AttrConstant
from ...egraph.types import dtypes
from ...errors import ShapeError
from .kernel import Call, Template

COMPUTE_DTYPE = "float32"


def output_terms(template: Template, call: Call, leaf: Callable[..., Tensor] = param) -> list[Tensor]:
    """Semantics of a kernel call: one term per output, made from the pattern of `template`, over leaves named like the
    operands.

    `leaf`: function that makes the leaves. If storage dtypes of operands differ from the compute dtype
    (model/storage_dtypes.py), all floats are unified: they become float32, and casts between them disappear. Raises
    ShapeError if the operands do not fit the pattern.
    """
    return pattern_terms(template.terms, call, leaf)


def pattern_terms(patterns: Sequence[Term], call: Call, leaf: Callable[..., Tensor] = param) -> list[Tensor]:
    """Semantics of a kernel call whose outputs have the parsed patterns `patterns`: one term per output, over leaves
    that `leaf` makes, named like the operands (`output_terms`)."""
    types = {name: o.type for name, o in call.operands.items()}
    try:
        return [build(term, _leaves(types, leaf), call.attrs) for term in patterns]
    except ShapeError:
        if not any(dtypes.is_float(t.dtype) for t in types.values()):
            raise
    unified = {name: Type(t.shape, _unified(t.dtype)) for name, t in types.items()}
    attrs = {name: _unified(value) for name, value in call.attrs.items()}
    return [build(_with_unified_casts(term), _leaves(unified, leaf), attrs) for term in patterns]


def _leaves(types: Mapping[str, Type], leaf: Callable[..., Tensor]) -> dict[str, Tensor]:
    return {name: leaf(name, t.shape, t.dtype) for name, t in types.items()}


def _unified(value: Any) -> Any:
    return COMPUTE_DTYPE if value in ("float16", "bfloat16", "float64") else value


def _with_unified_casts(term: Term) -> Term:
    made: dict[int, Term] = {}
    for t in shared(term):
        made[id(t)] = t
        if isinstance(t, PatternCall):
            attrs = tuple(
                (n, AttrConstant(_unified(a.value)) if isinstance(a, AttrConstant) else a) for n, a in t.attrs
            )
            made[id(t)] = PatternCall(t.op, tuple(made[id(a)] for a in t.args), attrs)
    return made[id(term)]
