"""Lazy pricing of a hypergraph's candidates: prices of generated kernels are looked up while library kernels are
measured.

The lookup key of a kernel's price covers everything that its time depends on; for the thousands of generated kernels of
a whole model the keys take seconds. Generated kernels must be compiled before they run, library kernels need not:
library kernels are priced immediately, and generated kernels cost infinity until their keys exist.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextvars import copy_context
from threading import Thread

from ..candidates.hypergraph import Hypergraph
from ..model.gc_pause import gc_paused
from ..model.kernel import Candidate
from ..model.pricing import Priced, Pricer

MIN_LAZY_CALLS = 2000  # least number of calls for lazy pricing: fewer take less time than a round
VIEW_US = 0.01  # a view is resolved when the program is bound; the price only breaks ties towards fewer views
POLL_INTERVAL_S = 0.05  # polling interval in seconds
_VIEW, _NOT_PRICED = Priced(VIEW_US, VIEW_US, VIEW_US, "measured"), Priced(math.inf, math.inf, math.inf, "bound")


class LazyPrices:
    """Prices of the candidates of a hypergraph; each call of the object asks the pricer again.

    With `later`, candidates that need a compiler and have no measurement cost infinity until their prices are ready
    (`start_background`), if the pricer supports it and there are at least MIN_LAZY_CALLS.
    """

    def __init__(self, hypergraph: Hypergraph, pricer: Pricer, *, later: bool = False) -> None:
        self.hypergraph, self.pricer = hypergraph, pricer
        self._prepare = pricer.prepare
        self._not_priced: set[int] = set()  # indices of calls that are priced later
        self._thread: Thread | None = None
        self._ended = False
        if later and self._prepare is not None:
            calls = hypergraph.calls[0]
            unpriced = {k for k, i in enumerate(calls) if self._needs_compiler(hypergraph.candidates[i])}
            self._not_priced = unpriced if MIN_LAZY_CALLS <= len(unpriced) < len(calls) else set()

    def _needs_compiler(self, candidate: Candidate) -> bool:
        return candidate.template.space is not None and not self.pricer.on_record(candidate)

    @property
    def incomplete(self) -> bool:
        """Whether some candidates are not priced yet."""
        return bool(self._not_priced)

    def start_background(self) -> None:
        """Start pricing the remaining candidates in a background thread."""
        if self._not_priced and self._thread is None and self._prepare is not None:
            calls = self.hypergraph.calls[0]
            waiting = (self.hypergraph.candidates[calls[k]] for k in sorted(self._not_priced) if not self._ended)
            self._thread = Thread(target=copy_context().run, args=(self._prepare, waiting), name="prices", daemon=True)
            self._thread.start()

    def wait(self, ended: Callable[[], bool] = lambda: False) -> bool:
        """Wait until all candidates are priced or `ended` returns True.

        Returns whether more candidates have a price now.
        """
        while self._not_priced and self._thread is not None and self._thread.is_alive():
            if ended():
                return False
            self._thread.join(POLL_INTERVAL_S)
        more = bool(self._not_priced)
        self._not_priced.clear()
        return more

    def end(self) -> None:
        """Stop the background pricing."""
        self._ended = True

    @gc_paused()
    def __call__(self) -> list[Priced]:
        """One price per candidate; infinite for candidates that are not priced yet."""
        if self._thread is not None and not self._thread.is_alive() and not self._ended:
            self._not_priced.clear()
        calls, which = self.hypergraph.calls
        asked = [self.hypergraph.candidates[i] for k, i in enumerate(calls) if k not in self._not_priced]
        known = iter(self.pricer.price(asked))
        priced = [*(_NOT_PRICED if k in self._not_priced else next(known) for k in range(len(calls))), _VIEW]
        return [priced[k] for k in which]


__all__ = ["MIN_LAZY_CALLS", "VIEW_US", "LazyPrices"]
