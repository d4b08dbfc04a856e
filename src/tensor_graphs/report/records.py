"""Defines the records of a report: kernels, calls, blocks (repeated subgraphs), finalists (plans timed as programs),
buckets (ranges of sizes) and user kernels, each a plain dataclass."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated

from ..extract.model.kernel import Template
from ..extract.model.plan import Plan
from ..extract.model.pricing import Priced
from ..plain import Natural, Within
from ..wording import counted

#: A time, a number of flops or bytes, or an error.
Amount = Annotated[float, Within(0.0, 1e18)]
Difference = Annotated[float, Within(-1e18, 1e18)]


@dataclass
class BufferReport:
    """A buffer of the workspace: `size` bytes at `offset`, from step `first` to step `last`. `value`: its id."""

    value: str
    offset: Natural
    size: Natural
    first: Natural
    last: Natural


@dataclass
class OperationReport:
    """An operation of the simplified model: its op, name, result type as text, and the indices of the operations that
    it `reads`."""

    op: str
    name: str
    type: str
    reads: list[Natural]


@dataclass
class BlockReport:
    """One unique block of a model: number of instances, number of operations (`nodes`) and size of its e-graph, and
    outcome of its saturation.

    `stopped`: the limit that ended it, after so many `iterations` and `seconds`.
    """

    instances: Natural
    nodes: Natural
    e_nodes: Natural
    classes: Natural
    stopped: str
    iterations: Natural
    seconds: Amount


@dataclass
class KernelReport:
    """One kernel of the plan, with all its calls."""

    name: str
    backend: str
    count: Natural
    us: Amount  # all calls together
    source: str  # price source: measured, predicted, bound or failed


@dataclass
class FinalistReport:
    """One plan that was timed as a whole program (GPU only).

    `kernels`: number of kernel calls. `predicted_us`: sum of its kernels' times. `measured_us`: time of a call with
    cold caches. `chosen`: whether the program runs this plan. `launching`: how its kernels follow each other
    (`Plan.launching`). `changed`: the kernels whose schedules differ from those of the plan before, with the schedule.
    """

    kernels: Natural
    predicted_us: Amount
    measured_us: Amount
    chosen: bool
    launching: str = ""
    changed: str = ""


@dataclass
class StepReport:
    """One kernel call of the plan.

    `computes`: the kernel's pattern as text. `us`: its price; `source`: origin of the price. `reads`, `writes`: ids of
    values; "in NAME" stands for inputs, states and weights. `type`: of the first output. `bytes`: compulsory memory
    traffic. `limit_us`: roofline bound of the call (None: unknown); `error`: its measured relative error (None: not
    measured).
    """

    name: str
    backend: str
    computes: str
    us: Amount
    source: str
    reads: list[str]
    writes: list[str]
    type: str = ""
    flops: Amount | None = None
    bytes: Amount | None = None
    limit_us: Amount | None = None
    error: Amount | None = None


@dataclass
class BucketReport:
    """A bucket of sizes of a free dimension, from `least` to `most`: what its calls run ("all sizes", "own plan" or
    "caller"), the size at which its own plan was searched (0: there is none), and µs of whole calls of each at some of
    its sizes."""

    dimension: str
    least: Natural
    most: Natural
    runs: str
    searched: Natural = 0
    us: dict[str, dict[str, Amount]] = field(default_factory=dict)  # size -> name of the form that ran -> µs of a call

    def __str__(self) -> str:
        times = "; ".join(f"at {n} " + ", ".join(f"{f} {us:.1f}" for f, us in of.items()) for n, of in self.us.items())
        return f"{self.dimension} {self.least}..{self.most}: {self.runs}" + (f" (µs {times})" if times else "")


@dataclass
class UserKernelReport:
    """A user kernel in a search: its matches on the e-graph, its calls in the plan, and µs of its cheapest match (None
    if unknown) with the origin of that price. `note`: why there are no matches, or no calls. `unsearched`: part of the
    e-graph in which it was not looked for, and why ("" if there is none)."""

    name: str
    matches: Natural
    calls: Natural
    us: Amount | None = None
    source: str = ""
    note: str = ""
    unsearched: str = ""

    def __str__(self) -> str:
        if not self.matches and self.unsearched:
            return f"{self.name}: not looked for in {self.unsearched}"
        if not self.matches:
            return f"{self.name}: no match in the e-graph" + (f" ({self.note})" if self.note else "")
        price = f"{self.us:.1f} µs ({self.source})" if self.us is not None else "no time"
        if self.calls:
            return f"{self.name}: {counted(self.calls, 'call')} in the plan, from {price}"
        return f"{self.name}: {self.matches} {'match' if self.matches == 1 else 'matches'} from {price}, in no call: {self.note or 'other kernels make a faster plan'}"


LONGEST_TEXT = 300  # characters of the text of one call


def step_rows(plan: Plan) -> list[StepReport]:
    """The kernel calls of a plan in order, without views, and without their limits and errors."""
    base = {v.id: v.base for v in plan.values if v.origin == "view"}

    def name(number: int) -> str:
        while number in base:
            number = base[number]
        value = plan.values[number]
        if value.origin == "kernel":
            return f"%{number}"
        return f"in {value.name[:LONGEST_TEXT]}" if value.name else f"in {value.origin} %{number}"

    return [
        StepReport(
            s.template.name, s.template.backend, s.template.pattern[:LONGEST_TEXT], s.cost.us, s.cost.origin,
            list(dict.fromkeys(name(v) for _, v in s.inputs)), [f"%{v}" for v in s.outputs],
            str(plan.values[s.output].type),
        )
        for s in plan.steps if not s.is_view
    ]  # fmt: skip


def kernel_rows(calls: Iterable[tuple[Template, Priced]]) -> list[KernelReport]:
    """Group kernel calls by kernel and origin of the price, most expensive first; without views."""
    grouped: dict[tuple[str, str], KernelReport] = {}
    for template, price in calls:
        if template.family == "view":
            continue
        new = KernelReport(template.name, template.backend, 0, 0.0, price.origin)
        row = grouped.setdefault((template.name, price.origin), new)
        row.count += 1
        row.us += price.us
    return sorted(grouped.values(), key=lambda k: -k.us)
