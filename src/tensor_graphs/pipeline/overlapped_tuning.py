"""Overlapped tuning: kernels are measured on the GPU while the host saturates the e-graph and matches kernels.

Saturation and matching take seconds, during which compilers and GPU would be idle, and most kernels of a good plan
compute parts of the original graph. Their measurements are in the cost store when the search of the rewritten graph
starts. If no time is left for that search, the hypergraph matched here is used.

A deep model has a short form (egraph/ir/short_form.py), whose rewritten graph is matched first and searched here, while
the whole model is matched: its solves take a fraction of the whole model's and find the cheapest plan, so that the
right kernels are measured. Of the unrewritten graph only library kernels are then matched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from threading import Event, Thread
from typing import TypeVar

from ..costdb.store.store import Store
from ..egraph.view.view import view_of
from ..errors import TensorGraphsError
from ..extract.candidates.hypergraph import Hypergraph
from ..extract.model.clock import Clock, Halted
from ..extract.model.kernel import Backend
from ..extract.model.pricing import Measurer
from ..extract.search.carried_plan import carried_plan
from ..extract.search.search import MeasuredAhead, measure_ahead
from .match import generation_limit, match_kernels, only_generated
from .prepare import Task
from .prices import CostPricer
from .rewrite import as_written
from .session import Session
from .short_search import wants_short_form

T = TypeVar("T")
Search = Callable[[Hypergraph, Callable[[], bool], Callable[[], None]], MeasuredAhead | None]


@dataclass
class OverlappedTuning:
    """Background thread that makes hypergraphs and measures their kernels, in the order of `matching` (small ones
    first).

    Each hypergraph is searched while the next is made, the last one until `end`. `search(hypergraph, stop, begun)`:
    `stop()` tells when to end, `begun()` is called when measuring starts; the next hypergraph is not made before that,
    because both need the host. Errors are recorded in `faults` and end the work: the main search repeats it and raises
    them.
    """

    matching: Sequence[Callable[[], Hypergraph]]
    search: Search
    search_short: Search | None = None  # for the hypergraph of the model's short form, `short`, given to `follow`
    graph: Hypergraph | None = None  # the last hypergraph made
    short: Hypergraph | None = None
    result: MeasuredAhead | None = None  # of the last search that ended
    faults: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._over = False
        self._matched = Event()
        self._enough, self._begun, self._searching = Event(), Event(), Thread()
        self._matching = Thread(target=copy_context().run, args=(self._match,), name="matching", daemon=True)
        self._matching.start()

    def matched(self) -> None:
        """Wait until all hypergraphs are made, because backends match for one caller at a time."""
        self._matched.wait()

    def follow(self, graph: Hypergraph) -> None:
        """End the search under way, and search the hypergraph of the model's short form."""
        self._matching.join()
        self._stop()
        self.short = graph
        self._start(graph, self.search_short or self.search)

    def settle(self, seconds: float) -> None:
        """Wait until the search of the short form ends, for at most `seconds`."""
        if self.short is not None:
            self._searching.join(max(0.0, seconds))

    def carried(self, whole: Hypergraph) -> list[int]:
        """The candidates of a hypergraph of the whole model that the plan of its short form has; after `end`."""
        if self.short is None or self.result is None:
            return []
        return carried_plan(self.result.chosen, self.short, whole)

    def end(self) -> None:
        """Stop, wait for running measurements, and release the hypergraph."""
        self._over = True
        self._matching.join()
        self._stop()
        self.graph = None

    def _match(self) -> None:
        try:
            self._match_in_order()
        finally:
            self._matched.set()

    def _match_in_order(self) -> None:
        for n, make in enumerate(self.matching, 1):
            graph = None if self._over else self._tried(make)
            self.graph = graph or self.graph
            if n == len(self.matching):
                self._matched.set()  # not only when its search measures: the host would wait for a solve
            self._stop()
            if graph is None:
                return
            self._start(graph, self.search)
            self._begun.wait()

    def _start(self, graph: Hypergraph, search: Search) -> None:
        self._enough, self._begun, self.result = Event(), Event(), None
        given = self._search, search, graph, self._enough, self._begun
        self._searching = Thread(target=copy_context().run, args=given, name="measuring", daemon=True)
        self._searching.start()

    def _stop(self) -> None:
        self._enough.set()
        if self._searching.ident is not None:
            self._searching.join()

    def _search(self, search: Search, graph: Hypergraph, enough: Event, begun: Event) -> None:
        self.result = self._tried(lambda: search(graph, enough.is_set, begun.set))
        begun.set()

    def _tried(self, work: Callable[[], T]) -> T | None:
        try:
            return work()
        except Halted:
            return None
        except TensorGraphsError as error:
            self.faults.append(error.message)
        except Exception as error:  # errors are recorded: this work is optional
            self.faults.append(f"{type(error).__name__}: {error}")
        return None


def start_tuning(session: Session, task: Task, store: Store, measurer: Measurer) -> OverlappedTuning:
    """Start overlapped tuning of the unrewritten graph: library kernels first, then generated kernels unless the model
    has a short form to follow."""
    options, pressed, clock = session.options, session.interrupted(), Clock()
    backends = task.backends
    session.clocks.append(("ahead", clock))
    libraries = [] if only_generated(backends) else [b for b in backends if not b.generates]

    def match(chosen: Sequence[Backend]) -> Hypergraph:
        with clock.running("match"):
            enough = generation_limit(session, backends)
            view = as_written(task.work) if task.symbolic is None else view_of(task.work)
            return match_kernels(session, view, chosen, pressed, enough, symbolic=task.symbolic)

    def measure(
        graph: Hypergraph, enough: Callable[[], bool], begun: Callable[[], None], plan: bool = False
    ) -> MeasuredAhead:  # fmt: skip
        stop = lambda: enough() or session.progress.stopped

        def said(message: str) -> None:
            begun()
            if plan:
                session.progress.say("ahead", message)

        measurer.keeps = True
        try:
            return measure_ahead(
                graph, CostPricer(store), measurer, seconds=options.budget, stop=stop, clock=clock, progress=said,
                plan=plan,
            )  # fmt: skip
        finally:
            measurer.keeps = False

    steps = [libraries, backends] if 0 < len(libraries) < len(backends) else [backends]
    if len(steps) > 1 and wants_short_form(session, task):
        del steps[1:]
    return OverlappedTuning([partial(match, step) for step in steps], measure, partial(measure, plan=True))


__all__ = ["OverlappedTuning", "start_tuning"]
