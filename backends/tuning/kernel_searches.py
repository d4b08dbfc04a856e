"""Keeps the schedule searches (over tuning parameters) of the kernels that a measurer tunes; similar kernels share
their best schedules.

Two kernels are similar if `trials.similarity_key` gives them equal keys. A search starts with the best schedules of
similar kernels, and is shorter once a similar kernel was searched to the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import replace
from itertools import islice

from ...extract.model.kernel import Call, Candidate, Template
from .keys import key_of
from .measurement import Sink
from .schedule_search import Key, Schedule, ScheduleSearch, key_of_schedule
from .trials import Measured, Trial, not_tried, search_of, similarity_key

BEST, CLOSE = 2, 1.1  # schedules per kernel measured in full; maximum multiple of the fastest time for these
ALIKE = 2  # best schedules of similar kernels that are tried
AGAIN = 8  # maximum schedules of a kernel after a similar kernel was searched

Cutoff = Callable[[Candidate], float]
Ahead = tuple[Measured, Schedule]  # a kernel and a schedule to compile speculatively


class KernelSearches:
    """Schedule searches, one per kernel, that try at most `schedules` schedules each. A search resumes from the earlier
    measurements in `sink` (the cost store)."""

    def __init__(self, sink: Sink, schedules: int) -> None:
        self.sink, self.schedules = sink, schedules
        self.alike: dict[Hashable, dict[Key, float]] = {}  # kind of kernel -> schedule -> least µs
        self._numbers: dict[str, int] = {}  # digest of a kernel with an extended search -> its number of schedules

    def of(self, template: Template, call: Call, *, guess: bool = True) -> ScheduleSearch | None:
        """The schedule search of a kernel, starting with the best schedules of similar kernels (not without `guess`,
        since kernels may be emitted to tell whether these fit); shorter if a similar kernel was searched to the end.
        None if the kernel has no schedules to choose from."""
        most = self._numbers.get(key_of(template, call).digest, self.schedules) if self._numbers else self.schedules
        search = search_of(template, call, most, self.sink.snapshot)
        known = dict(self.alike.get(similarity_key(template, call), {}))  # a copy, because another thread may add to it
        if search is not None and search.fits is not None and known:
            best = (dict(key) for key in sorted(known, key=lambda key: (known[key], key)))
            search.like = list(islice(filter(search.fits, best), ALIKE)) if guess else ()
            if len(known) >= self.schedules and most == self.schedules:
                search.count = min(search.count, AGAIN)
        return search

    def wanted(self, kernel: Measured, search: ScheduleSearch, worth: Cutoff | None) -> list[Schedule]:
        """Tell a kernel's search the times of the trials so far; returns the schedules that it proposes next.

        `worth`: function from a candidate to its cost cutoff in µs, None for no cutoffs. If the kernel is given up, its
        remaining schedules are recorded as failures.
        """
        for one in kernel.trials:
            us, key = (one.twin or one).us, key_of_schedule(one.call.schedule)
            search.record(one.call.schedule, us)
            if us < math.inf:
                known = self.alike.setdefault(similarity_key(kernel.template, kernel.call), {})
                known[key] = min(us, known.get(key, us))
        if why := kernel.given_up:
            rest = [s for s in search.ranked if key_of_schedule(s) not in search.known]
            kernel.trials += [Trial(replace(kernel.call, schedule=dict(s)), failure=not_tried(why)) for s in rest]
            return []
        useful = worth(kernel.candidate) if worth is not None and kernel.candidate is not None else math.inf
        return search.more(useful, look=kernel.look)

    def best(self, kernel: Measured, worth: Cutoff | None) -> list[int]:
        """Indices of the trials to measure in full: the fastest ones.

        Empty in three cases: no trial succeeded; even the fastest is far above the kernel's cutoff; or the kernel had a
        first look only and has schedules left to try, so that the samples of its trials suffice.

        `worth`: function from a candidate to its cost cutoff in µs, None for no cutoffs.
        """
        alive = {i: t for i, t in enumerate(kernel.trials) if t.twin is None and t.us < math.inf}
        right = sorted(alive, key=lambda i: alive[i].us)
        left = kernel.search is not None and len(kernel.search.known) < len(kernel.search.ranked)
        if not right or (kernel.look and left):
            return []
        if worth is not None and kernel.candidate is not None:
            useful = worth(kernel.candidate)
            if not 0 < alive[right[0]].us <= CLOSE * useful:
                return []
        return [i for i in right[:BEST] if alive[i].us <= CLOSE * alive[right[0]].us]

    def beginnings(self, later: Iterable[tuple[Candidate, bool]]) -> Iterator[tuple[Measured, Schedule]]:
        """Yields (kernel, schedule) for the first schedules that searches of further candidates would propose. `later`:
        pairs (candidate whose search has not begun, whether only a few of its schedules are tried).
        """
        for candidate, look in later:
            if not candidate.is_view:
                kernel = Measured(candidate.template, candidate.call)
                search = self.of(kernel.template, kernel.call)
                yield from ((kernel, s) for s in (search.more(look=look) if search is not None else ()))

    def unfinished(self, candidate: Candidate) -> bool:
        """Whether a measured candidate has schedules left that are worth measuring, because its search was cut off."""
        template, snapshot = candidate.template, self.sink.snapshot
        if candidate.is_view or template.space is None or snapshot is None or not snapshot.tuned(template.identity):
            return False
        search = self.of(template, candidate.call, guess=False)
        return search is not None and bool(search.known) and search.unfinished

    def further(self, candidate: Candidate) -> bool:
        """Allow `schedules` more schedules to a candidate's search that has used up its number; returns whether any are
        left to try.

        False, without a change, for a search that has not used up its number of schedules.
        """
        if candidate.is_view or candidate.template.space is None:
            return False
        search = self.of(candidate.template, candidate.call)
        if search is None or search.remaining > 0:
            return False
        self._numbers[key_of(candidate.template, candidate.call).digest] = search.count + self.schedules
        return self.unfinished(candidate)


__all__ = ["AGAIN", "ALIKE", "Ahead", "Cutoff", "KernelSearches"]
