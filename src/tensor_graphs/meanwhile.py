"""Kernels of the graph as it is written are measured on a GPU while the host rewrites it and matches kernels on what that found.

That takes seconds, in which compilers and device would have nothing to do, and most kernels of a good plan compute parts of the graph as
it came. What was measured is in the cost store when the search of the rewritten graph begins; and where there is no time for that one,
what was matched here is what there is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import copy_context
from dataclasses import dataclass, field
from threading import Event, Thread
from typing import TypeVar

from .errors import TensorGraphsError
from .extract.candidates import Hypergraph
from .extract.clock import Halted

T = TypeVar("T")


@dataclass
class Meanwhile:
    """Hypergraphs are made one after the other in a thread of their own, small ones first (`matching`), and each is searched
    while the next is made, the last one until `end`. `search` has a hypergraph, what says that it is to end, and what it calls when it
    begins to measure: not before does the next one need the host. What goes wrong is noted in `faults` and ends it: whoever does the
    same later will come upon it."""

    matching: Sequence[Callable[[], Hypergraph]]
    search: Callable[[Hypergraph, Callable[[], bool], Callable[[], None]], None]
    graph: Hypergraph | None = None  # the last that was made
    faults: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._over = False
        self._enough, self._begun, self._searching = Event(), Event(), Thread()
        self._matching = Thread(target=copy_context().run, args=(self._match,), name="matching", daemon=True)
        self._matching.start()

    def matched(self) -> None:
        """Wait until no hypergraph is made any more: backends match for one caller at a time."""
        self._matching.join()

    def end(self) -> None:
        """Stop, wait until no more is measured, and let go of the hypergraph, which takes memory."""
        self._over = True
        self._matching.join()
        self._stop()
        self.graph = None

    def _match(self) -> None:
        for make in self.matching:
            graph = None if self._over else self._tried(make)
            self._stop()
            if graph is None:
                return
            self.graph, self._enough, self._begun = graph, Event(), Event()
            given = self._search, graph, self._enough, self._begun
            self._searching = Thread(target=copy_context().run, args=given, name="measuring", daemon=True)
            self._searching.start()
            self._begun.wait()

    def _stop(self) -> None:
        self._enough.set()
        if self._searching.ident is not None:
            self._searching.join()

    def _search(self, graph: Hypergraph, enough: Event, begun: Event) -> None:
        self._tried(lambda: self.search(graph, enough.is_set, begun.set))
        begun.set()

    def _tried(self, work: Callable[[], T]) -> T | None:
        try:
            return work()
        except Halted:
            return None
        except TensorGraphsError as error:
            self.faults.append(error.message)
        except Exception as error:  # nothing hangs on it here
            self.faults.append(f"{type(error).__name__}: {error}")
        return None


__all__ = ["Meanwhile"]
