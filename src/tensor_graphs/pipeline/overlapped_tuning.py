"""Measures kernels of the graph as written on the GPU while the host saturates the e-graph (overlapped tuning).

Saturation and matching take seconds, during which compilers and GPU would be idle, and most kernels of a good plan
compute parts of the original graph. Their measurements are in the cost store when the search of the rewritten graph
starts. If no time is left for that search, the hypergraph matched here is used. Of a deep model only the short form
(the model with few of its repeated layers, short_search.py) is matched with generated kernels, and only with small
budgets: with others the rewritten short form is there soon, and both would take the interpreter's lock from each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from threading import Event, Thread
from typing import TypeVar

from ..costdb.store.store import Store
from ..egraph.blocks.blocks import Blocks
from ..egraph.view.view import view_of
from ..errors import TensorGraphsError
from ..extract.candidates.hypergraph import Hypergraph
from ..extract.model.backend import Backend
from ..extract.model.clock import Clock, Halted
from ..extract.model.pricing import Measurer
from ..extract.search.search import measure_ahead
from .context.reserves import FULL_S
from .context.session import Session
from .costs.prices import CostPricer
from .short_search import wanted_short_form
from .stages.match import generation_limit, match_kernels, only_generated
from .stages.prepare import Task
from .stages.rewrite import as_written

T = TypeVar("T")


@dataclass
class OverlappedTuning:
    """Background thread that matches and measures hypergraphs in order (`matching`, small ones first). With `whole`
    they are of the model's short form, and that of the whole model is made before them, but not searched.

    Each is searched while the next is made, the last one until `end`. `search(hypergraph, stop, begun)`: `stop()` tells
    when to end, `begun()` is called when measuring starts; the next hypergraph is not made before that, because both
    need the host. `prepare(hypergraph, stop)` does what its search needs first, while that of the one before goes on.
    Errors are recorded in `faults` and end the work: the main search repeats it and raises them.
    """

    matching: Sequence[Callable[[], Hypergraph]]
    search: Callable[[Hypergraph, Callable[[], bool], Callable[[], None]], None]
    whole: Callable[[], Hypergraph] | None = None
    prepare: Callable[[Hypergraph, Callable[[], bool]], None] = lambda graph, stop: None
    graph: Hypergraph | None = None  # the last hypergraph of the whole model
    short_graph: Hypergraph | None = None  # the last one of the short form
    faults: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._over = self._quiet = False
        self._matched = Event()
        self._enough, self._begun, self._searching = Event(), Event(), Thread()
        self._matching = Thread(target=copy_context().run, args=(self._match,), name="matching", daemon=True)
        self._matching.start()

    def matched(self) -> None:
        """Wait until all hypergraphs are matched, because backends match for one caller at a time."""
        self._matched.wait()

    def quiet(self) -> None:
        """Begin no further round of measuring, without waiting for the present one: the host's work for it slows down
        matching in the main thread, whose search measures what is left."""
        self._quiet = True

    def end(self) -> None:
        """Stop, wait for running measurements, and release the hypergraph."""
        self._over = True
        self._matching.join()
        self._stop()
        self.graph = self.short_graph = None

    def _match(self) -> None:
        try:
            self._match_in_order()
        finally:
            self._matched.set()

    def _match_in_order(self) -> None:
        if self.whole is not None:
            self.graph = self._tried(self.whole)
        for n, make in enumerate(self.matching, 1):
            graph = None if self._over else self._tried(make)
            if self.whole is not None:
                self.short_graph = graph or self.short_graph
            else:
                self.graph = graph or self.graph
            if n == len(self.matching):
                self._matched.set()  # not only when its search measures: the host would wait for a solve
            if graph is not None and not self._over:
                self._tried(partial(self.prepare, graph, lambda: self._over or self._quiet))
            self._stop()
            if graph is None:
                return
            self._enough, self._begun = Event(), Event()
            given = self._search, graph, self._enough, self._begun
            self._searching = Thread(target=copy_context().run, args=given, name="measuring", daemon=True)
            self._searching.start()
            self._begun.wait()

    def _stop(self) -> None:
        self._enough.set()
        if self._searching.ident is not None:
            self._searching.join()

    def _search(self, graph: Hypergraph, enough: Event, begun: Event) -> None:
        self._tried(lambda: self.search(graph, lambda: self._quiet or enough.is_set(), begun.set))
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


def start_tuning(
    session: Session, task: Task, blocks: Blocks, store: Store, measurer: Measurer
) -> OverlappedTuning:  # fmt: skip
    """Start measuring kernels of the unrewritten graph, which consists of `blocks`, while it is rewritten.

    Library kernels come first, then generated kernels. If the model is deep enough for a short form (each repeated
    block once), all kernels of the short form are measured instead; with a budget of at least FULL_S seconds, only the
    library kernels of the whole graph, since matching the rewritten short form needs the host's cores.
    """
    options, pressed, clock = session.options, session.interrupted(), Clock()
    backends, pricer = task.backends, CostPricer(store)
    session.background_clocks.append(("overlapped tuning", clock))
    libraries = [] if only_generated(backends) else [b for b in backends if not b.generates]

    def match(chosen: Sequence[Backend], blocks: Blocks = blocks) -> Hypergraph:
        with clock.running("match"):
            enough = generation_limit(session, backends)
            view = as_written(blocks) if task.symbolic is None else view_of(task.work)
            return match_kernels(session, view, chosen, pressed, enough, symbolic=task.symbolic)

    def prepare(graph: Hypergraph, stop: Callable[[], bool]) -> None:
        with clock.running("price"):
            pricer.prepare(graph.candidates[i] for i in graph.calls[0] if not stop())

    def measure(graph: Hypergraph, enough: Callable[[], bool], begun: Callable[[], None]) -> None:
        stop, say = (lambda: enough() or session.progress.stopped), (lambda message: begun())
        measurer.keeps = True
        try:
            measure_ahead(graph, pricer, measurer, seconds=options.budget, stop=stop, clock=clock, progress=say)
        finally:
            measurer.keeps = False

    steps = [libraries, backends] if 0 < len(libraries) < len(backends) else [backends]
    short = wanted_short_form(session, task, blocks) if len(steps) > 1 else None
    if short is None:
        return OverlappedTuning([partial(match, step) for step in steps], measure, prepare=prepare)
    if options.budget >= FULL_S:
        return OverlappedTuning([partial(match, libraries)], measure, prepare=prepare)
    return OverlappedTuning([partial(match, backends, short)], measure, partial(match, libraries), prepare)


__all__ = ["OverlappedTuning", "start_tuning"]
