"""The prices of a hypergraph's candidates; those that can wait are made beside the first measuring.

A kernel is looked up by a key of all that its time depends on, and of the thousands that can be generated for a whole model the keys
take seconds. Nothing of them can run before a compiler has been waited for, while libraries' kernels can: these are priced at once,
and until the keys of the others are there, the others do not exist.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextvars import copy_context
from threading import Thread

from .candidates import Hypergraph
from .collection import no_collection
from .kernel import Candidate, Priced, Pricer

MANY = 2000  # calls from which on they are priced later: fewer take less than a round does
VIEW_US = 0.01  # a view is made when the program is bound; the price only breaks ties towards fewer of them
POLL_S = 0.05  # between looks at the clock
_VIEW, _LATE = Priced(VIEW_US, VIEW_US, VIEW_US, "measured"), Priced(math.inf, math.inf, math.inf, "bound")


class Prices:
    """What the candidates of a hypergraph cost; each call asks anew. With `later`, candidates of which nothing was measured and that
    a compiler must be waited for are left out until they are ready (`go_on`), where a pricer can tell which and there are many."""

    def __init__(self, hypergraph: Hypergraph, pricer: Pricer, *, later: bool = False) -> None:
        self.hypergraph, self.pricer = hypergraph, pricer
        self._prepare: Callable[[Iterable[Candidate]], None] | None = getattr(pricer, "prepare", None)
        self._late: set[int] = set()  # calls that come later, by number
        self._thread: Thread | None = None
        self._ended = False
        if later and self._prepare is not None:
            calls = hypergraph.calls[0]
            late = {k for k, i in enumerate(calls) if self._waits(hypergraph.candidates[i])}
            self._late = late if MANY <= len(late) < len(calls) else set()

    def _waits(self, candidate: Candidate) -> bool:
        return candidate.template.space is not None and not self.pricer.on_record(candidate)  # type: ignore[attr-defined]

    @property
    def partial(self) -> bool:
        """Whether some are left out."""
        return bool(self._late)

    def go_on(self) -> None:
        """Have the others made ready, beside whatever else is done."""
        if self._late and self._thread is None and self._prepare is not None:
            calls = self.hypergraph.calls[0]
            late = (self.hypergraph.candidates[calls[k]] for k in sorted(self._late) if not self._ended)
            given = self._prepare, late
            self._thread = Thread(target=copy_context().run, args=given, name="prices", daemon=True)
            self._thread.start()

    def wait(self, ended: Callable[[], bool] = lambda: False) -> bool:
        """Have all ready, unless the time ends before; whether something is now that was not."""
        while self._late and self._thread is not None and self._thread.is_alive():
            if ended():
                return False
            self._thread.join(POLL_S)
        late = bool(self._late)
        self._late.clear()
        return late

    def end(self) -> None:
        """Nothing is asked any more: what is not ready is left."""
        self._ended = True

    @no_collection()
    def __call__(self) -> list[Priced]:
        """One price per candidate; infinite for those that come later."""
        if self._thread is not None and not self._thread.is_alive() and not self._ended:
            self._late.clear()
        calls, which = self.hypergraph.calls
        asked = [self.hypergraph.candidates[i] for k, i in enumerate(calls) if k not in self._late]
        known = iter(self.pricer.price(asked))
        priced = [*(_LATE if k in self._late else next(known) for k in range(len(calls))), _VIEW]
        return [priced[k] for k in which]


__all__ = ["MANY", "VIEW_US", "Prices"]
