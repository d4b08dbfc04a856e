"""Runs the stage "simplify": derives from a loaded graph the graphs that later stages use: at concrete sizes,
simplified, and with 16-bit floats widened to float32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...backends.registry import on_gpu, select
from ...egraph.evaluate.interpret import expand_all
from ...egraph.ir.graph import Graph
from ...egraph.ir.tensor import Tensor
from ...egraph.saturate.worker import default_pool
from ...egraph.simplify.empty import without_empty
from ...egraph.simplify.jumps import deciding
from ...egraph.simplify.masks import canonical_masks
from ...egraph.simplify.simplify import simplified, simplify
from ...egraph.simplify.wide_numbers import numbers_kept_wide
from ...egraph.simplify.widen import float32_values, widen
from ...egraph.view.recognized import recognized
from ...errors import ShapeError
from ...extract.model.backend import Backend
from ...wording import counted
from ..context.session import Session
from ..costs.measuring import SMALL_S
from ..sizes.any_size import Symbolic
from ..sizes.size_ranges import why_fixed
from ..sources.source import bound


@dataclass(frozen=True)
class Prepared:
    """A model at concrete sizes as three graphs: original, simplified, and simplified with 16-bit floats widened."""

    graph: Graph  # the original; verification compares with it
    work: Graph  # simplified, with 16-bit floats widened to float32: the form that is optimized
    sizes: dict[str, int]
    narrow: Graph  # simplified only: the form of eager execution on devices with 16-bit kernels

    def written(self, backends: Sequence[Backend]) -> Graph:
        """The graph that the unfused baseline (one library kernel per node) runs: with 16-bit floats on a GPU, widened
        on a CPU."""
        return self.narrow if on_gpu(backends) else self.work


@dataclass(frozen=True)
class Task:
    """One model to optimize for some backends.

    `symbolic`: state of the size-polymorphic search; None for a program of fixed sizes.
    """

    source: Graph  # as loaded; dimensions may be free
    model: Prepared
    backends: Sequence[Backend]
    symbolic: Symbolic | None = None

    @property
    def work(self) -> Graph:
        """The simplified graph that saturation rewrites; for a program of every size with generic sizes (primes that
        stand for free sizes)."""
        return self.model.work if self.symbolic is None else self.symbolic.work

    @property
    def on_gpu(self) -> bool:
        """Whether the program runs on a GPU."""
        return on_gpu(self.backends)

    def searched(self, *, as_written: bool) -> Graph:
        """The graph at concrete sizes that a plan computes: with `as_written` that of the unfused baseline, else the
        optimized one."""
        return self.model.written(self.backends) if as_written else self.model.work


def prepare(
    session: Session,
    graph: Graph,
    sizes: Mapping[str, int] | None,
    *,
    begin: bool = True,
    in_place: bool = False,
    rounds: bool = False,
) -> Prepared:
    """Derive from a model the graphs that later stages use: sizes bound, simplified, 16-bit floats widened to float32.

    With tolerance "exact" nothing is widened; composite ops are replaced by their decompositions, as in the
    interpreter. `begin`: also start the saturation workers. `in_place`: values that elements are written into (caches)
    stay 16-bit. `rounds`: values are stored in 16 bits, so that a float32 model keeps its casts to them (`widen`), and
    values that a 16-bit model computes in float32 are noted in `session.float32_values`.
    """
    if begin and session.options.saturation_limits.iterations:
        default_pool().begin()  # worker processes start in the background
    with session.stage("simplify", counted(len(graph.nodes()), "node")):
        original, used = bound(graph, sizes)
        exact = session.options.exact
        narrow = work = simplify(without_empty(original), exact=exact)
        wide: list[Tensor] = []
        if exact:
            work = work.with_roots(numbers_kept_wide(expand_all(work.roots)))
        else:
            masked = canonical_masks(work)
            wide = float32_values(masked, in_place=in_place) if rounds else []
            work, wide = _simplified_again(widen(masked, in_place=in_place, rounds=rounds), narrow, wide)
        if _recognizes(session) and not deciding(work):
            work, wide = _simplified_again(recognized(work, session.rules), work, wide)
        session.float32_values |= {*wide}.intersection(work.nodes() if wide else ())
    return Prepared(original, work, used, narrow)


def _simplified_again(graph: Graph, known: Graph, values: list[Tensor]) -> tuple[Graph, list[Tensor]]:
    """A graph and values of it simplified (`simplified`), which takes as long as the first time: not where the graph is
    still the simplified one, `known`."""
    return (graph, values) if graph is known else simplified(graph, values)


def _recognizes(session: Session) -> bool:
    """Whether composite ops are recognized before saturation, whose time may be too short for that: in small budgets on
    a CPU."""
    options = session.options
    small = options.budget <= SMALL_S and not options.deterministic
    return small and options.effort > 0 and not options.exact and not on_gpu(select(options.backend_name))


def for_every_size(session: Session, graph: Graph, prepared: Prepared, backends: Sequence[Backend]) -> Symbolic | None:
    """The graph in free sizes, for a size-polymorphic search.

    None if it has no free dimensions, or if such a search is impossible (the report says why).
    """
    if not graph.free_dims:
        return None
    fixed = dict.fromkeys("a GPU" if b.device.on_gpu else b.device.name for b in backends if not b.device.any_size)
    why = f"programs on {', '.join(fixed)} have no free sizes" if fixed else why_fixed(graph)
    if not why:
        try:
            with session.stage("simplify", "in free sizes"):
                return Symbolic.of(graph, prepared.sizes, exact=session.options.exact, backends=backends)
        except ShapeError as error:
            why = error.message
    session.warnings.append(f"the program runs at one size only: {why}")
    return None


__all__ = ["Prepared", "Task", "for_every_size", "prepare"]
