"""Prices of candidate kernels: what the cost store knows of a kernel on the machine it would run on."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from .backends.keys import key_of
from .backends.schedule_search import key_of_schedule
from .backends.tries import SCHEDULES
from .costdb import tuned
from .costdb.key import Work
from .costdb.predict import Price, Query
from .costdb.store import Store
from .extract.kernel import Candidate, Priced
from .extract.work import call_work

FAILED = Priced(math.inf, math.inf, math.inf, "failed")


@dataclass(frozen=True)
class Variant:
    """One schedule of a candidate, and what the store is asked about it."""

    schedule: tuple[tuple[str, int], ...]
    query: Query


class CostPricer:
    """Prices candidates from a cost store; equal calls are priced once.

    A kernel with schedules costs what its cheapest measured one does. Kernels on a GPU are priced with their operands out
    of cache ("cold"): there the weights of a model never stay in it.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.forgiving = False  # whether kernels that failed to be measured are priced as if they had not been tried
        self._variants: dict[tuple[int, int], tuple[list[Variant], bool, Candidate]] = {}

    def variants(self, candidate: Candidate, *, every: bool = True) -> Sequence[Variant]:
        """The candidate's schedules (one without tiles where it has none): the ranked ones, or only the best of them; and with
        `every` those that the store knows. Made once per call: candidates share equal calls."""
        place = (id(candidate.template), id(candidate.call))
        made, complete, _ = self._variants.get(place, ([], False, candidate))
        if not made or (every and not complete):
            made = _variants(candidate, every)
            complete = every or candidate.template.space is None
            self._variants[place] = made, complete, candidate  # held: ids stay unique
        if not every or made[0].schedule == ():
            return made
        return [*made, *self._moved(made)]

    def _moved(self, made: Sequence[Variant]) -> list[Variant]:
        """Schedules beyond the ranked ones that a kernel was timed in."""
        ranked, query, snapshot = {v.schedule for v in made}, made[0].query, self.store.snapshot
        others = (s for s in tuned.tried(snapshot, query.key) if key_of_schedule(s) not in ranked)
        keys = ((key_of_schedule(s), query.key.with_schedule(s)) for s in others)
        return [Variant(s, Query(key, query.work)) for s, key in keys if snapshot.has(key.digest)]

    def prepare(self, found: Iterable[Candidate]) -> None:
        """Make the keys of candidates, which take longest of pricing them; may run beside other uses of this object."""
        for candidate in found:
            self.variants(candidate, every=False)

    def on_record(self, candidate: Candidate) -> bool:
        """Whether any schedule was measured of the candidate's kernel, in whatever shape."""
        return bool(self.store.snapshot.tuned(candidate.template.identity))

    def price(self, found: Sequence[Candidate]) -> list[Priced]:
        """One price per candidate; what failed before is infinitely dear."""
        tried = self.store.snapshot.kernels()
        asked = [self.variants(c, every=c.template.identity in tried) for c in found]
        queries = {v.query.key.digest: v.query for variants in asked for v in variants}
        failed = set() if self.forgiving else set(self.store.failures(queries))
        prices = self._prices(queries)
        return [_cheapest(variants, prices, failed) for variants in asked]

    def errors(self, found: Sequence[Candidate]) -> list[float]:
        """Relative Frobenius error of each candidate against float64, the largest that any of its schedules was measured
        to have; 0 for views and for what the store does not know."""
        asked = [[] if c.is_view else [v.query.key.digest for v in self.variants(c)] for c in found]
        known = self.store.accuracies({digest for digests in asked for digest in digests})
        return [max([r.rel_fro for d in digests for r in known.get(d, ())], default=0.0) for digests in asked]

    def _prices(self, queries: Mapping[str, Query]) -> dict[str, Price]:
        """Digest to price, each in the regime of its device."""
        prices: dict[str, Price] = {}
        for regime in ("hot", "cold"):
            part = [q for q in queries.values() if regime_of(q.key.device) == regime]
            prices |= {q.key.digest: p for q, p in zip(part, self.store.price(part, regime=regime))} if part else {}
        return prices


def regime_of(device: str) -> str:
    """Which of a device's measured times stands for a kernel inside a program."""
    return "hot" if device.startswith("cpu") else "cold"


def _variants(candidate: Candidate, every: bool) -> list[Variant]:
    template, call = candidate.template, candidate.call
    work, key = Work(*call_work(template, call)), key_of(template, call)
    if template.space is None or call.schedule:
        return [Variant(tuple(sorted(call.schedule.items())), Query(key, work))]
    space = list(template.space(call))[:SCHEDULES] or [{}]
    return [Variant(tuple(sorted(s.items())), Query(key.with_schedule(s), work)) for s in space[: None if every else 1]]


def _cheapest(variants: Sequence[Variant], prices: Mapping[str, Price], failed: set[str]) -> Priced:
    """The cheapest measured schedule, else the first that did not fail; infinite if all ranked ones failed."""
    known = [(v, prices[v.query.key.digest]) for v in variants]
    measured = [(v, p) for v, p in known if p.source == "measured"]
    hopeful = [(v, p) for v, p in known if v.query.key.digest not in failed]
    if not measured and not hopeful:
        return FAILED
    best, price = min(measured, key=lambda pair: pair[1].us) if measured else hopeful[0]
    return Priced(price.us, price.low, price.high, price.source, best.schedule)
