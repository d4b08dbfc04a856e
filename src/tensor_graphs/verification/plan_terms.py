"""Computes the terms that a plan (choice of kernels) computes, over its inputs, states and weights."""

from __future__ import annotations

from collections.abc import Mapping

from ..egraph.ir.tensor import Tensor, make
from ..egraph.patterns.pattern import Var, build
from ..egraph.types.dtypes import HALVES
from ..extract.model.plan import Plan, Step


def meaning(plan: Plan) -> tuple[list[Tensor], dict[int, Tensor]]:
    """Terms that a plan computes, as (terms of its outputs followed by those of its updated states; value id -> its
    term)."""
    stored = any(v.carried for v in plan.values)
    values: dict[int, Tensor] = {i: _carried(w, stored) for i, w in plan.weights.items()}
    for value in plan.values:
        if value.origin in ("input", "state"):
            leaf = make(value.origin, (), {"name": value.name, "shape": value.type.shape, "dtype": value.type.dtype})
            values[value.id] = _carried(leaf, stored)
    for step in plan.steps:
        for made, term in zip(step.outputs, step_meanings(step, values), strict=True):
            values[made] = _carried(term, stored)
    return [values[i] for i in (*plan.outputs, *plan.updates.values())], values


def _carried(value: Tensor, stored: bool) -> Tensor:
    """Widen a 16-bit term to float32 if the plan's storage dtypes differ from the patterns' compute dtypes
    (model/storage_dtypes.py).
    """
    return make("cast", (value,), {"dtype": "float32"}) if stored and value.dtype in HALVES else value


def step_meanings(step: Step, values: Mapping[int, Tensor]) -> list[Tensor]:
    """Terms of one step's outputs, built over its operands' terms. `values`: value id -> its term."""
    operands = {o: values[i] for o, i in step.inputs}
    if isinstance(step.template.term, Var):
        return [operands[step.template.term.name]]
    if step.is_view:  # a view's template names the op, its call holds the attributes
        return [make(step.template.name.rpartition(".")[2], [values[i] for _, i in step.inputs], dict(step.call.attrs))]
    return [build(term, operands, step.call.attrs) for term in step.template.terms]
