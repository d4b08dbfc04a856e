"""How the kernels of a GPU program follow each other: as they were measured, or overlapping in part.

`Plan.launching` is one of `WAYS`; a search times them as whole programs, because kernels that were measured one by one do not
tell which one is fastest.

- "": every kernel as it was measured.
- "held": kernels in CUDA C++ that start while their predecessor runs (programmatic dependent launch) read their weights before
  they wait for it.
- "overlapping": the same, and every generated kernel that can starts while its predecessor runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from ...extract.model.plan import Plan, Step
from .memory_plan import roots

HELD, OVERLAPPING = "held", "overlapping"
WAYS = ("", HELD, OVERLAPPING)


def launched(plan: Plan) -> Plan:
    """The plan with the schedules and constant operands of its way to launch kernels (`Plan.launching`).

    In the ways that read weights before a wait, the first generated kernel waits before it lets its successor start. So what
    runs before the program, which may write weights, has ended when the second one reads its weights.
    """
    if plan.launching not in (HELD, OVERLAPPING) or plan.sizes:
        return plan
    root, steps, first = roots(plan), [], True
    for step in plan.steps:
        if step.is_view or step.template.space is None or step.template.fits is None:
            steps.append(step)
            continue
        schedules = _late(step) if first else _early(step) if plan.launching == OVERLAPPING else ()
        found = next((s for s in schedules if step.template.fits(replace(step.call, schedule=s))), step.call.schedule)
        weights = frozenset(o for o, v in step.inputs if plan.values[root[v]].origin == "weight")
        constant = weights if found.get("early") and not first else frozenset()
        steps.append(replace(step, call=replace(step.call, schedule=dict(found), constant=constant)))
        first = first and bool(found.get("early"))  # True until one has waited for all before
    return replace(plan, steps=tuple(steps))


def changes(plan: Plan, launching: str) -> bool:
    """Whether another way to launch kernels changes a plan."""
    pairs = zip(plan.steps, launched(replace(plan, launching=launching)).steps, strict=True)
    return any(b.call.constant or dict(a.call.schedule) != dict(b.call.schedule) for a, b in pairs)


def _early(step: Step) -> Iterator[Mapping[str, int]]:
    """Schedules of a step with programmatic dependent launch, the preferred one first."""
    yield {**step.call.schedule, "early": 1, "warm": 1}
    yield {**step.call.schedule, "early": 1}


def _late(step: Step) -> Iterator[Mapping[str, int]]:
    """The schedule of a step without programmatic dependent launch."""
    yield {k: v for k, v in step.call.schedule.items() if k not in ("early", "warm")}
