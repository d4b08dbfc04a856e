"""Finds regions of a plan with their distance from the roofline (lower bound of time): single kernel calls, and short
chains of them.

In a chain, each call is the only reader of the one before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..backends.user.reference import pattern_of
from ..costdb.keys.key import Work
from ..costdb.store.store import Store
from ..egraph.builders.builders import input as placeholder
from ..egraph.ir.tensor import Tensor
from ..errors import ShapeError, UsageError
from ..extract.model.plan import Plan, Step, Value
from ..extract.model.work import graph_flops
from ..pipeline.costs.prices import CostPricer, calls_of
from ..verification.plan_terms import step_meanings
from ..wording import counted

LONGEST_CHAIN = 4  # calls of a region
JOINED = 0.1  # fraction of the calls' limits that one kernel must save in memory traffic for the calls to be one region
SMALLEST_GAP_US = 0.1


@dataclass(frozen=True)
class Region:
    """Kernel calls of a plan that one kernel could compute.

    `steps`: the calls. `terms`: their results over inputs named like `operands`, which are the values that they read;
    `results`: the values that they write. `count`: equal regions of the plan. Times in µs of one call: `us` today,
    `limit_us` by the roofline. `share`: fraction of the plan's time of all equal regions.
    """

    steps: tuple[Step, ...]
    terms: tuple[Tensor, ...]
    operands: tuple[tuple[str, Value], ...]
    results: tuple[Value, ...]
    us: float
    limit_us: float
    flops: float
    bytes: float
    count: int = 1
    share: float = 0.0

    @property
    def gap_us(self) -> float:
        """Total time above the roofline limit in µs, summed over all equal regions."""
        return self.count * max(self.us - self.limit_us, 0.0)

    @property
    def pattern(self) -> str:
        """The terms in the pattern language, over the operands' names."""
        return pattern_of(self.terms)


def regions_of(plan: Plan, store: Store, count: int) -> list[Region]:
    """Up to `count` regions (connected groups of kernel calls) whose time exceeds their roofline bound most (`gap_us`),
    the largest excess first.

    No call of the plan is in two of them. Raises UsageError for a plan with free sizes.
    """
    if plan.sizes:
        raise UsageError(f"the plan has free sizes {sorted(plan.sizes)}", hint="fix them: --fix NAME=SIZE")
    finder = _Finder(plan, CostPricer(store))
    found = finder.grouped([r for steps in finder.groups() if (r := finder.region(steps)) is not None])
    chosen: list[Region] = []
    taken: set[int] = set()
    for region in sorted(found, key=lambda r: -r.gap_us):
        numbers = {id(s) for s in region.steps}
        if len(chosen) < count and region.gap_us > SMALLEST_GAP_US and not numbers & taken:
            chosen.append(region)
            taken |= numbers
    return chosen


def reason_without_regions(plan: Plan, store: Store) -> str:
    """Reason why `regions_of` finds no region in a plan, with advice."""
    kernels = [s for s in plan.steps if not s.is_view]
    if not kernels:
        return "the plan calls no kernels: its outputs are inputs, weights or views of them"
    limits = [f.limit_us if f else 0.0 for f in CostPricer(store).facts(calls_of(kernels))]
    time, limit = sum(s.cost.us for s in kernels), sum(limits)
    unknown = sum(s.cost.source == "bound" for s in kernels)
    text = f"no kernel is slower than its limit: {counted(len(kernels), 'kernel call')}, {time:.1f} µs, limits {limit:.1f} µs"
    if unknown:
        return f"{text}; {unknown} of them were never measured and count at their limit: give a larger budget"
    return text


class _Finder:
    def __init__(self, plan: Plan, pricer: CostPricer) -> None:
        self.plan, self.pricer = plan, pricer
        self.makers = {v: s for s in plan.steps for v in s.outputs}
        self.kernels = [s for s in plan.steps if not s.is_view]
        self.total = sum(s.cost.us for s in self.kernels) or 1.0
        self.readers: dict[int, list[Step]] = {}  # root value -> kernels that read it
        for s in self.kernels:
            for r in {self._root(v) for _, v in s.inputs}:
                self.readers.setdefault(r, []).append(s)
        self.kept = {self._root(v) for v in (*plan.outputs, *plan.updates.values())}

    def _root(self, value: int) -> int:
        while (maker := self.makers.get(value)) is not None and maker.is_view:
            value = maker.inputs[0][1]
        return value

    def groups(self) -> Iterator[tuple[Step, ...]]:
        """Chains of up to LONGEST_CHAIN calls, each the only reader of the only result of the call before."""
        for s in self.kernels:
            chain = [s]
            yield (s,)
            while len(chain) < LONGEST_CHAIN and (after := self._only_reader(chain[-1])) is not None:
                chain.append(after)
                yield tuple(chain)

    def _only_reader(self, step: Step) -> Step | None:
        """The only kernel that reads the only result of a call; None if there are others, or outputs."""
        if step.more or step.output in self.kept:
            return None
        found = self.readers.get(step.output, [])
        return found[0] if len(found) == 1 else None

    def region(self, steps: tuple[Step, ...]) -> Region | None:
        """The region of some calls; None if its terms cannot be written, or if joining its calls saves little."""
        inside = {v for s in steps for v in s.outputs}
        last = steps[-1]
        values: dict[int, Tensor] = {}
        operands: dict[str, Value] = {}
        try:
            for s in steps:
                for _, v in s.inputs:
                    self._value(v, inside, values, operands)
                values |= dict(zip(s.outputs, step_meanings(s, values), strict=True))
            terms = tuple(values[v] for v in last.outputs)
        except (ShapeError, KeyError):
            return None
        results = tuple(self.plan.values[v] for v in last.outputs)
        if any(t.type != r.type for t, r in zip(terms, results)):
            return None  # stored in another dtype than computed
        work = Work(graph_flops(list(terms)), float(sum(_bytes(v) for v in (*operands.values(), *results))))
        facts = self.pricer.facts(calls_of(steps))
        known = [f for f in facts if f is not None]
        us, limit = sum(s.cost.us for s in steps), min(f.roofline.us(work) for f in known)
        if len(steps) > 1 and limit > (1 - JOINED) * sum(f.limit_us for f in known):
            return None
        return Region(steps, terms, tuple(operands.items()), results, us, limit, work.flops, work.bytes)

    def _value(self, value: int, inside: set[int], values: dict[int, Tensor], operands: dict[str, Value]) -> None:
        """Add the term of a value: an input of the region, or a view of a value inside."""
        if value in values:
            return
        if self._root(value) in inside:
            maker = self.makers[value]
            self._value(maker.inputs[0][1], inside, values, operands)
            values[value] = step_meanings(maker, values)[0]
            return
        found, weight = self.plan.values[value], self.plan.weights.get(value)
        if weight is not None and weight.op == "full":
            values[value] = weight  # a constant
            return
        name = f"x{len(operands)}"
        operands[name] = found
        values[value] = placeholder(name, found.type.shape, found.type.dtype)

    def grouped(self, found: Sequence[Region]) -> list[Region]:
        """Equal regions as one, with their number and their share of the plan's time."""
        groups: dict[tuple[object, ...], list[Region]] = {}
        for r in found:
            kinds = tuple((v.type, v.strides) for _, v in r.operands)
            groups.setdefault((r.pattern, kinds, len(r.steps)), []).append(r)
        return [
            Region(
                same[0].steps, same[0].terms, same[0].operands, same[0].results, sum(r.us for r in same) / len(same), same[0].limit_us, same[0].flops, same[0].bytes,
                len(same), sum(r.us for r in same) / self.total,
            )
            for same in groups.values()
        ]  # fmt: skip


def _bytes(value: Value) -> int:
    return value.type.nbytes


__all__ = ["Region", "reason_without_regions", "regions_of"]
