"""Defines launch overlap, how consecutive kernels of a GPU program are launched: one after another, or partly
overlapping.

`Plan.launching` is one of `OVERLAPS`. A search times whole programs to choose one, because times of single kernels do
not tell which is fastest.

- "": every kernel with the schedule with which it was measured.
- "held": kernels in CUDA C++ that start while their predecessor runs (programmatic dependent launch) read their
  weights, and states in their old values, before they wait for the predecessor. No earlier kernel of the program has
  written these states, because a kernel that writes a state in place comes after (or is) the last one that reads the
  old state.
- "overlapping": as "held", and every generated kernel for which that is legal starts while its predecessor runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from ....extract.model.plan import Plan, Step
from ..emit.memory_plan import roots

HELD, OVERLAPPING = "held", "overlapping"
OVERLAPS = ("", HELD, OVERLAPPING)


def plan_for_launching(plan: Plan) -> Plan:
    """`plan` with schedules and constant operands (`Call.constant`) of its kernels changed for its launch overlap
    (`Plan.launching`).

    If kernels read weights and states before they wait for their predecessor, the first generated kernel is launched
    without programmatic dependent launch. So work before the program, which may write these, has ended when the second
    kernel reads them.
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
        given = frozenset(o for o, v in step.inputs if plan.values[root[v]].origin in ("weight", "state"))
        constant = given if found.get("early") and not first else frozenset()
        steps.append(replace(step, call=replace(step.call, schedule=dict(found), constant=constant)))
        first = first and bool(found.get("early"))  # True until a kernel has waited for all earlier ones
    return replace(plan, steps=tuple(steps))


def changes_schedules(plan: Plan, launching: str) -> bool:
    """Whether the kernels of `plan` need other schedules or constant operands if they are launched with the
    overlap `launching` (one of `OVERLAPS`) than one after another."""
    pairs = zip(plan.steps, plan_for_launching(replace(plan, launching=launching)).steps, strict=True)
    return any(b.call.constant or dict(a.call.schedule) != dict(b.call.schedule) for a, b in pairs)


def _early(step: Step) -> Iterator[Mapping[str, int]]:
    """Schedules of a step with programmatic dependent launch, the preferred one first."""
    yield {**step.call.schedule, "early": 1, "warm": 1}
    yield {**step.call.schedule, "early": 1}


def _late(step: Step) -> Iterator[Mapping[str, int]]:
    """The schedule of a step without programmatic dependent launch."""
    yield {k: v for k, v in step.call.schedule.items() if k not in ("early", "warm")}
