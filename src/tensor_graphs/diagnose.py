"""Whose fault a wrong plan is: the rewrites', if the plan's own meaning in float64 differs from the model's; a kernel's,
if the meaning agrees and running it does not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .egraph.dims import concrete
from .egraph.graph import Graph, Tensor, make
from .egraph.interpret import evaluate
from .egraph.pattern import Var, build
from .extract.kernel import Plan, Step
from .verify import index_bounds, relative_error, sample_inputs

TOLERABLE = 1e-4  # relative error of one kernel in float32 that rounding may explain


def meaning(plan: Plan) -> tuple[list[Tensor], dict[int, Tensor]]:
    """The expression that the plan computes: per output (then update), and per value."""
    values: dict[int, Tensor] = dict(plan.weights)
    for value in plan.values:
        if value.origin in ("input", "state"):
            values[value.id] = make(
                value.origin, (), {"name": value.name, "shape": value.type.shape, "dtype": value.type.dtype}
            )
    for step in plan.steps:
        values[step.output] = step_meaning(step, values)
    return [values[i] for i in (*plan.outputs, *plan.updates.values())], values


def step_meaning(step: Step, values: Mapping[int, Tensor]) -> Tensor:
    """The expression of one step over its inputs' expressions."""
    operands = {o: values[i] for o, i in step.inputs}
    if isinstance(step.template.term, Var):
        return operands[step.template.term.name]
    if step.is_view:  # a view's pattern names its op; the attributes are the call's
        return make(step.template.name.rpartition(".")[2], [values[i] for _, i in step.inputs], dict(step.call.attrs))
    return build(step.template.term, operands, step.call.attrs)


def blame(graph: Graph, plan: Plan, seed: int = 0) -> str:
    """A sentence naming the suspects."""
    rng = np.random.default_rng(seed)
    inputs = sample_inputs([*graph.inputs, *graph.leaves("state")], rng, index_bounds(graph))
    roots, _ = meaning(plan)
    exact = evaluate(graph, inputs, float64=True)
    said = evaluate(roots, inputs, params=graph.params, float64=True)
    off = max(relative_error(s.reshape(np.shape(e)), e) for s, e in zip(said, exact, strict=True))
    if off > TOLERABLE:
        return f"the rewrites: in float64 the plan's own meaning is off by {off:.3g}; {_rewritten(plan)}"
    return f"the kernels: {', '.join(wrong_kernels(plan)) or 'none alone is wrong; the memory plan or the emitter'}"


def _rewritten(plan: Plan) -> str:
    return f"its kernels are {', '.join(sorted({s.template.name for s in plan.steps if not s.is_view}))}"


def wrong_kernels(plan: Plan) -> list[str]:
    """Names of templates that, run alone on random operands, differ from their pattern in float64."""
    from .backends.direct import run_template

    found: dict[str, None] = {}
    seen: set[Any] = set()
    rng = np.random.default_rng(1)
    for step in plan.steps:
        key = (step.template.name, tuple((o, step.call.operands[o]) for o in step.template.operands))
        if step.is_view or key in seen:
            continue
        seen.add(key)
        operands = _operands(step, rng)
        leaves = {
            o: make("input", (), {"name": o, "shape": a.shape, "dtype": step.call.operands[o].type.dtype})
            for o, a in operands.items()
        }
        values = {i: leaves[o] for o, i in step.inputs}
        exact = evaluate([step_meaning(step, values)], operands, float64=True)[0]
        if relative_error(run_template(step.template, step.call, operands), exact) > TOLERABLE:
            found[step.template.name] = None
    return list(found)


def _operands(step: Step, rng: np.random.Generator) -> dict[str, Any]:
    leaves: Sequence[Tensor] = [
        make("input", (), {"name": o, "shape": concrete(x.type.shape), "dtype": x.type.dtype})
        for o, x in step.call.operands.items()
    ]
    return sample_inputs(leaves, rng)
