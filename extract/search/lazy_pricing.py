"""Lazy pricing: prices of a hypergraph's candidates; the prices of generated kernels are computed while others are
measured.

The price lookup key of a kernel covers everything that its time depends on; for the thousands of generated kernels of a
whole model the keys take seconds. Generated kernels must be compiled before they run, library kernels need not: library
kernels are priced immediately, and generated kernels cost infinity until their keys exist."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextvars import copy_context
from threading import Thread

from ..candidates.candidates import Hypergraph
from ..model.gc_pause import gc_paused
from ..model.kernel import Candidate, Priced, Pricer

MANY = 2000  # least number of calls for lazy pricing: fewer take less time than a round
VIEW_US = 0.01  # a view is resolved when the program is bound; the price only breaks ties towards fewer views
POLL_S = 0.05  # polling interval in seconds
_VIEW, _LATE = Priced(VIEW_US, VIEW_US, VIEW_US, "measured"), Priced(math.inf, math.inf, math.inf, "bound")


class Prices:
    """Prices of the candidates of a hypergraph; each call asks the pricer again. With `later`, candidates without any
    measurement that need a compiler are left out until they are ready (`go_on`), if the pricer supports it and there
    are at least MANY."""

    def __init__(self, hypergraph: Hypergraph, pricer: Pricer, *, later: bool = False) -> None:
        self.hypergraph, self.pricer = hypergraph, pricer
        self._prepare = pricer.prepare
        self._late: set[int] = set()  # indices of calls that are priced later
        self._thread: Thread | None = None
        self._ended = False
        if later and self._prepare is not None:
            calls = hypergraph.calls[0]
            late = {k for k, i in enumerate(calls) if self._waits(hypergraph.candidates[i])}
            self._late = late if MANY <= len(late) < len(calls) else set()

    def _waits(self, candidate: Candidate) -> bool:
        return candidate.template.space is not None and not self.pricer.on_record(candidate)

    @property
    def partial(self) -> bool:
        """Whether some candidates are not priced yet."""
        return bool(self._late)

    def go_on(self) -> None:
        """Start pricing the remaining candidates in a background thread."""
        if self._late and self._thread is None and self._prepare is not None:
            calls = self.hypergraph.calls[0]
            late = (self.hypergraph.candidates[calls[k]] for k in sorted(self._late) if not self._ended)
            given = self._prepare, late
            self._thread = Thread(target=copy_context().run, args=given, name="prices", daemon=True)
            self._thread.start()

    def wait(self, ended: Callable[[], bool] = lambda: False) -> bool:
        """Wait until all candidates are priced or `ended` returns True; returns whether more candidates have a price
        now."""
        while self._late and self._thread is not None and self._thread.is_alive():
            if ended():
                return False
            self._thread.join(POLL_S)
        late = bool(self._late)
        self._late.clear()
        return late

    def end(self) -> None:
        """Stop the background pricing."""
        self._ended = True

    @gc_paused()
    def __call__(self) -> list[Priced]:
        """One price per candidate; infinite for candidates that are not priced yet."""
        if self._thread is not None and not self._thread.is_alive() and not self._ended:
            self._late.clear()
        calls, which = self.hypergraph.calls
        asked = [self.hypergraph.candidates[i] for k, i in enumerate(calls) if k not in self._late]
        known = iter(self.pricer.price(asked))
        priced = [*(_LATE if k in self._late else next(known) for k in range(len(calls))), _VIEW]
        return [priced[k] for k in which]


__all__ = ["MANY", "VIEW_US", "Prices"]
