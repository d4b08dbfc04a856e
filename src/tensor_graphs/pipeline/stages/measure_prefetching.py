"""Measures kernels of a finished search that could read weights before they wait for their predecessor, so that they
can be tried in the program (time_schedules.py). Alone they gain nothing by it, so searches measure few of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Protocol

from ...backends.registry import find
from ...errors import WorkerError
from ...extract.model.kernel import Candidate
from ...extract.search.search import Choice
from ...extract.search.swaps import Measured, Swaps
from ...wording import counted
from ..context.session import Session

SHARE = 0.05  # least share of the program's time that the kernels in their places take
GAP = 0.5  # largest excess of their predicted times over these, relative to them
MOST = 3  # most kernels that are measured
EACH = 4  # schedules of a kernel that are measured because they read all weights before the wait


class Look(Protocol):
    """`Measurer.measure`: measures kernels in processes of their own."""

    def __call__(self, candidates: Iterable[Candidate], *, worth: Callable[[Candidate], float]) -> object: ...


@dataclass(frozen=True)
class _Worth:
    """Cost cutoff of measuring (`extract.search.cutoff.CostCutoff`): µs by candidate, until `ended`."""

    us: Mapping[int, float]  # by id of the candidate
    ended: Callable[[], bool]

    def __call__(self, candidate: Candidate) -> float:
        return self.us.get(id(candidate), math.inf)


def measure_prefetching(
    session: Session, choice: Choice, swaps: Swaps, measured: Measured, look: Look, seconds: float
) -> list[int]:  # fmt: skip
    """Measure kernels that could read weights before they wait, in the places of kernels that take most of a choice's
    time, where none was measured, and further schedules of the latter with which blocks read all weights before they
    wait; for so many seconds. Returns the candidates that have measurements then and had none."""
    candidates, found, us = choice.hypergraph.candidates, list[list[int]](), dict[int, float]()
    further = list[Candidate]()
    for group in swaps.groups(choice, SHARE):
        for candidate in _further(candidates[group[0]], measured):
            further.append(candidate)
            us[id(candidate)] = (1 + GAP) * choice.prices[group[0]].us
        alike = swaps.unmeasured(choice, group, measured, prefetches, GAP)
        if alike and len(found) < MOST:
            found.append(alike)
            us[id(candidates[alike[0]])] = (1 + GAP) * choice.prices[group[0]].us
    if not found and not further:
        return []
    session.progress.say(
        "schedules", f"measuring {counted(len(found), 'other kernel')}, {counted(len(further), 'other schedule')}"
    )
    until = session.now() + seconds
    ended = lambda: session.now() >= until or session.progress.stopped
    try:
        look([*(candidates[alike[0]] for alike in found), *further], worth=_Worth(us, ended))
    except WorkerError as error:
        session.warnings.append(f"nothing more was measured: {error.message}")
    return [i for alike in found for i in alike if measured(candidates[i])]


def _further(candidate: Candidate, measured: Measured) -> list[Candidate]:
    """A kernel with each of its first schedules with which it reads all weights before it waits, if it may read any: so
    many that `EACH` of them are measured then."""
    template, call = candidate.template, candidate.call
    if template.space is None or not prefetches(candidate):
        return []
    known = {p.schedule for p in measured(candidate)}
    left = EACH - sum(bool(dict(s).get("early")) and reads_whole(scheduled(candidate, dict(s))) for s in known)
    wanted = (s for s in template.space(call) if s.get("early") and tuple(sorted(s.items())) not in known)
    return list(islice(filter(reads_whole, (scheduled(candidate, s) for s in wanted)), max(0, left)))


def scheduled(candidate: Candidate, schedule: Mapping[str, int]) -> Candidate:
    """The candidate with its kernel in `schedule` (parameter name -> integer)."""
    return replace(candidate, call=replace(candidate.call, schedule=dict(schedule)))


def reads_whole(candidate: Candidate) -> bool:
    """Whether a kernel that may read weights before it waits reads all of them then."""
    backend = find(candidate.template.backend)
    return backend is not None and backend.reads_whole(candidate.template, candidate.call)


def prefetches(candidate: Candidate) -> bool:
    """Whether a kernel may read weights before its predecessor has ended (programmatic dependent launch)."""
    backend = find(candidate.template.backend)
    return backend is not None and backend.prefetches


__all__ = ["Look", "measure_prefetching", "prefetches", "reads_whole", "scheduled"]
