"""How the kernels of a GPU program follow each other: as they were measured, overlapping, or in persistent kernels.

`Plan.launching` is one of `WAYS`; a search times them as whole programs, because kernels that were measured one by one do not
tell which one is fastest.

- "": every kernel as it was measured.
- "overlapping": every generated kernel that can starts while its predecessor runs (programmatic dependent launch), and those
  in CUDA C++ read their weights before they wait for it.
- "persistent": runs of kernels in CUDA C++ are one persistent kernel each (emit_gpu_persistent.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from ...extract.model.plan import Plan, Step
from .memory_plan import roots

OVERLAPPING, PERSISTENT = "overlapping", "persistent"
WAYS = ("", OVERLAPPING, PERSISTENT)


def overlapping(plan: Plan) -> Plan:
    """The plan with kernels that start while their predecessors run. The same plan if there is no such kernel.

    The first generated kernel waits before it lets its successor start. So what runs before the program, which may write
    weights, has ended when the second one reads its weights.
    """
    root, steps, first = roots(plan), [], True
    for step in plan.steps:
        if step.is_view or step.template.space is None or step.template.fits is None:
            steps.append(step)
            continue
        weights = frozenset(o for o, v in step.inputs if plan.values[root[v]].origin == "weight")
        schedules = _late(step) if first else _early(step)
        found = next((s for s in schedules if step.template.fits(replace(step.call, schedule=s))), step.call.schedule)
        constant = frozenset() if first else weights
        steps.append(replace(step, call=replace(step.call, schedule=dict(found), constant=constant)))
        first = False
    return replace(plan, steps=tuple(steps))


def overlaps(plan: Plan) -> bool:
    """Whether `overlapping` changes a plan; False for plans with free sizes, which have other launches."""
    pairs = () if plan.sizes else zip(plan.steps, overlapping(plan).steps, strict=True)
    return any(b.call.constant or dict(a.call.schedule) != dict(b.call.schedule) for a, b in pairs)


def _early(step: Step) -> Iterator[Mapping[str, int]]:
    """Schedules of a step with programmatic dependent launch, the preferred one first."""
    yield {**step.call.schedule, "early": 1, "warm": 1}
    yield {**step.call.schedule, "early": 1}


def _late(step: Step) -> Iterator[Mapping[str, int]]:
    """The schedule of a step without programmatic dependent launch."""
    yield {k: v for k, v in step.call.schedule.items() if k not in ("early", "warm")}
