"""Computes prices (times in µs) of candidate kernels for the target machine, from measurements in the cost store and
predictions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ...backends.tuning.keys import key_of
from ...backends.tuning.schedule_search import key_of_schedule
from ...backends.tuning.trials import SCHEDULES
from ...costdb.keys.key import Work
from ...costdb.price.predict import Price, Query
from ...costdb.price.roofline import DeviceRoofline
from ...costdb.store import tuned
from ...costdb.store.store import Store
from ...extract.model.kernel import Candidate, Vertex
from ...extract.model.plan import Plan, Step
from ...extract.model.pricing import Priced
from ...extract.model.work import call_work
from .few_programs import few_programs, is_gpu, priced_in_few_programs
from .host_calls import least_us, with_calls

FAILED = Priced(math.inf, math.inf, math.inf, "failed")


@dataclass(frozen=True)
class ScheduleVariant:
    """One schedule (tuning parameters) of a candidate with the cost store query for its price."""

    schedule: tuple[tuple[str, int], ...]
    query: Query


@dataclass(frozen=True)
class KernelBounds:
    """Flops, bytes of compulsory memory traffic, lower bound in µs (`limit_us`) and measured relative error (against
    float64) of a kernel.

    The error is None if unknown. `roofline`: peak rates of its device for its backend and dtype, from which the bound
    follows.
    """

    flops: float
    bytes: float
    limit_us: float
    error: float | None
    roofline: DeviceRoofline


class CostPricer:
    """Prices of candidates from a cost store; equal calls are priced once.

    A kernel with schedules costs as much as its cheapest measured schedule. GPU kernels are priced with cold caches: a
    model's weights never stay in cache there.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.forgiving = False  # price kernels whose measurement failed as if unmeasured
        self._variants: dict[tuple[int, int], tuple[list[ScheduleVariant], bool, Candidate]] = {}
        self._least: dict[tuple[int, int], float] = {}  # of calls that are in `_variants`

    def variants(self, candidate: Candidate, *, every: bool = True) -> Sequence[ScheduleVariant]:
        """Schedules of a candidate, each with its cost store query; one empty schedule for kernels without any.

        With `every` all ranked ones and those that the store has measured, else only the best-ranked. Cached per call,
        since candidates share calls.
        """
        place = (id(candidate.template), id(candidate.call))
        made, complete, _ = self._variants.get(place, ([], False, candidate))
        if not made or (every and not complete):
            made = _variants(candidate, every)
            complete = every or candidate.template.space is None
            self._variants[place] = made, complete, candidate  # keeps the candidate alive so that ids stay unique
        if not every or made[0].schedule == ():
            return made
        return [*made, *self._moved(made)]

    def _moved(self, made: Sequence[ScheduleVariant]) -> list[ScheduleVariant]:
        """Measured schedules of a kernel outside of the ranked ones."""
        ranked, query, snapshot = {v.schedule for v in made}, made[0].query, self.store.snapshot
        others = (s for s in tuned.tried_schedules(snapshot, query.key) if key_of_schedule(s) not in ranked)
        keys = ((key_of_schedule(s), query.key.with_schedule(s)) for s in others)
        return [ScheduleVariant(s, Query(key, query.work)) for s, key in keys if snapshot.has(key.digest)]

    def prepare(self, found: Iterable[Candidate]) -> None:
        """Compute the cost store keys of candidates in advance, the slowest part of pricing; may run in another
        thread."""
        for candidate in found:
            self.variants(candidate, every=False)

    def on_record(self, candidate: Candidate) -> bool:
        """Whether the store has a measurement of the candidate's kernel, for any shape and schedule."""
        return bool(self.store.snapshot.tuned(candidate.template.identity))

    def price(self, found: Sequence[Candidate]) -> list[Priced]:
        """One price per candidate; infinite if its measurement failed."""
        tried = self.store.snapshot.kernels()
        asked = [self.variants(c, every=c.template.identity in tried) for c in found]
        queries = {v.query.key.digest: v.query for variants in asked for v in variants}
        failed = set() if self.forgiving else set(self.store.failures(queries))
        prices = self._prices(queries)
        return [self._whole(c, variants, _cheapest(variants, prices, failed)) for c, variants in zip(found, asked)]

    def _whole(self, candidate: Candidate, variants: Sequence[ScheduleVariant], priced: Priced) -> Priced:
        """A candidate's price; a predicted one is at least the time of its function's calls on the host, or that which
        the few programs of its kernel need on a GPU."""
        priced, query = with_calls(priced, candidate, self._host_us), variants[0].query
        if (
            not is_gpu(query.key.device)
            or priced.source == "measured"
            or (programs := few_programs(candidate)) == math.inf
        ):
            return priced
        roofline = self.store.predictor(regime_of(query.key.device)).roofline(query.key)
        return priced_in_few_programs(priced, programs, query, roofline)

    def _host_us(self, candidate: Candidate) -> float:
        """Least µs of a candidate's calls on the host; kept for each call, since it reads the kernel's code."""
        place = (id(candidate.template), id(candidate.call))
        if place not in self._least:
            self._least[place] = least_us(candidate)
        return self._least[place]

    def measured(self, candidate: Candidate) -> list[Priced]:
        """The prices of a candidate in all schedules that were measured on this machine, the fastest first."""
        if not self.on_record(candidate):
            return []
        variants = self.variants(candidate)
        prices = self._prices({v.query.key.digest: v.query for v in variants})
        failed = set(self.store.failures(prices))
        known = [(v.schedule, d, prices[d]) for v in variants for d in (v.query.key.digest,)]
        found = [
            Priced(p.us, p.low, p.high, p.source, schedule)
            for schedule, digest, p in known
            if p.source == "measured" and not p.shipped and digest not in failed
        ]
        return sorted(found, key=lambda p: (p.us, p.schedule))

    def errors(self, found: Sequence[Candidate]) -> list[float]:
        """Relative Frobenius error of each candidate against float64, the maximum over its measured schedules.

        0 for views and unmeasured candidates.
        """
        asked = [[] if c.is_view else [v.query.key.digest for v in self.variants(c)] for c in found]
        known = self.store.accuracies({digest for digests in asked for digest in digests})
        return [max([r.rel_fro for d in digests for r in known.get(d, ())], default=0.0) for digests in asked]

    def facts(self, found: Sequence[Candidate]) -> list[KernelBounds | None]:
        """Work, lower bound (roofline) and measured error of each candidate; None for views."""
        made: dict[tuple[int, int], KernelBounds] = {}
        rows: list[KernelBounds | None] = []
        for c in found:
            place = (id(c.template), id(c.call))
            if not c.is_view and place not in made:
                query = self.variants(c, every=False)[0].query
                errors = self.errors([c]) if self.on_record(c) else [0.0]
                predictor = self.store.predictor(regime_of(query.key.device))
                limit = predictor.rooflines.bound_us(query.key.columns, query.work)
                made[place] = KernelBounds(
                    query.work.flops, query.work.bytes, limit, errors[0] or None, predictor.roofline(query.key)
                )
            rows.append(None if c.is_view else made[place])
        return rows

    def _prices(self, queries: Mapping[str, Query]) -> dict[str, Price]:
        """Price per key digest, each in the cache regime of its device."""
        prices: dict[str, Price] = {}
        for regime in ("hot", "cold"):
            part = [q for q in queries.values() if regime_of(q.key.device) == regime]
            prices |= {q.key.digest: p for q, p in zip(part, self.store.price(part, regime=regime))} if part else {}
        return prices


_NOWHERE = Vertex(-1, ())  # place of the results of calls that are only priced


def calls_of(steps: Iterable[Step]) -> list[Candidate]:
    """The kernel calls of plan steps as candidates (without vertices) that can be priced; views are left out."""
    return [Candidate(s.template, _NOWHERE, (), s.call) for s in steps if not s.is_view]


def at_stored_prices(plan: Plan, pricer: CostPricer) -> Plan:
    """The plan with each kernel's price replaced by the one in the store; kernels that failed there keep their
    prices."""
    kernels = [s for s in plan.steps if not s.is_view]
    prices = {id(s): p for s, p in zip(kernels, pricer.price(calls_of(kernels))) if p.us < math.inf}
    steps = tuple(replace(s, cost=prices.get(id(s), s.cost)) for s in plan.steps)
    return replace(plan, steps=steps, cost=sum(s.cost.us for s in steps))


def regime_of(device: str) -> str:
    """State of the caches in measurements that stand for a kernel inside a program on this device: "hot" (CPU) or
    "cold" (GPU)."""
    return "hot" if device.startswith("cpu") else "cold"


def _variants(candidate: Candidate, every: bool) -> list[ScheduleVariant]:
    template, call = candidate.template, candidate.call
    work, key = Work(*call_work(template, call)), key_of(template, call)
    if template.space is None or call.schedule:
        return [ScheduleVariant(tuple(sorted(call.schedule.items())), Query(key, work))]
    space = list(template.space(call))[:SCHEDULES] or [{}]
    return [
        ScheduleVariant(tuple(sorted(s.items())), Query(key.with_schedule(s), work))
        for s in space[: None if every else 1]
    ]


def _cheapest(variants: Sequence[ScheduleVariant], prices: Mapping[str, Price], failed: set[str]) -> Priced:
    """Price of the cheapest schedule measured here, else of the cheapest shipped one, else of the first that did not
    fail; FAILED if all ranked ones failed.
    """
    known = [(v, prices[v.query.key.digest]) for v in variants]
    measured = [(v, p) for v, p in known if p.source == "measured"]
    hopeful = [(v, p) for v, p in known if v.query.key.digest not in failed]
    if not measured and not hopeful:
        return FAILED
    here = [(v, p) for v, p in measured if not p.shipped]
    best, price = min(here or measured, key=lambda pair: pair[1].us) if measured else hopeful[0]
    return Priced(price.us, price.low, price.high, price.source, best.schedule, price.shipped)
