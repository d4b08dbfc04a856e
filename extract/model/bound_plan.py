"""Replaces the free sizes of plans (choices of kernels) by given numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ...egraph.ops.ops import Type
from ...egraph.types import dims
from .plan import Plan
from .sizes import bound_call, bound_terms


def bound_plan(plan: Plan, sizes: Mapping[str, int]) -> Plan:
    """The plan with free sizes replaced by numbers in types, strides and attributes."""
    if not sizes:
        return plan

    def fix(v: Any) -> Any:
        return tuple(map(fix, v)) if isinstance(v, tuple) else dims.bind(v, sizes) if isinstance(v, dims.DimExpr) else v

    def kind(t: Type) -> Type:
        return Type(fix(t.shape), t.dtype)

    values = tuple(replace(v, type=kind(v.type), strides=fix(v.strides)) for v in plan.values)
    steps = tuple(replace(s, call=bound_call(s.call, sizes)) for s in plan.steps)
    terms = bound_terms(list(plan.weights.values()), sizes)
    left = {n: s for n, s in plan.sizes.items() if n not in sizes}
    return replace(plan, graph=plan.graph.bind(sizes), values=values, steps=steps, sizes=left,
                   weights=dict(zip(plan.weights, terms)))  # fmt: skip
