"""Restricts backends to the kernels that the tolerance of an optimization allows, and graphs to ops with kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ...backends.user.templates import USER_PREFIX
from ...egraph.evaluate.interpret import expand_all
from ...egraph.ir.graph import Graph
from ...egraph.ops.ops import OPS, Type
from ...egraph.patterns.pattern import PatternCall
from ...egraph.view.view import EGraphView
from ...extract.model import kernel
from ...extract.model.backend import Backend, Generation
from ...extract.model.kernel import Template


class FilteredBackend:
    """Backend restricted to the kernels of `templates`, and to no generated kernels unless `generates`.

    `base` is a backend that holds the state of one optimization already (`Lowerings.opened`).
    """

    def __init__(self, base: Backend, templates: Sequence[Template], *, generates: bool = True) -> None:
        self.name, self.device, self.helpers = base.name, base.device, base.helpers
        self.templates = tuple(templates)
        self.base = base
        self.generates, self.several = generates and base.generates, base.several

    def unavailable(self) -> str:
        """Reason why the backend cannot be used here (`Backend.unavailable`)."""
        return self.base.unavailable()

    def with_templates(self, templates: Sequence[Template]) -> FilteredBackend:
        """A copy of the backend with other library kernels (`Backend.with_templates`)."""
        return FilteredBackend(self.base, templates, generates=self.generates)

    def opened(self, lowerings: Any = None) -> FilteredBackend:
        """The backend itself, since its base is opened; `lowerings` is not used."""
        return self

    def generated(
        self, view: EGraphView, given: frozenset[int], types: Sequence[Type], enough: Callable[[], bool]
    ) -> Iterator[Generation]:
        """The kernels that the backend generates for fusion groups (terms for one kernel) of an e-graph, unless they
        are excluded (`Backend.generated`)."""
        return self.base.generated(view, given, types, enough) if self.generates else iter(())

    def packed_products(self, view: EGraphView, given: frozenset[int], types: Sequence[Type]) -> Iterator[Generation]:
        """The kernels of products with packed weights, unless generated kernels are excluded
        (`Backend.packed_products`)."""
        return self.base.packed_products(view, given, types) if self.generates else iter(())

    def prepare(self, asked: Sequence[tuple[Template, kernel.Call]]) -> Iterator[None]:
        """Lower calls of generated templates before `Template.applies` needs the result (`Backend.prepare`)."""
        return self.base.prepare(asked)


def within_loss(backend: Backend, limit: float, *, each_rounds: bool = False) -> FilteredBackend:
    """Backend restricted to library kernels that lose at most `limit` (relative error) by rounding operands to fewer
    digits. With `each_rounds`, kernels that compute `x * y + z` with one rounding (`torch.addcmul`) are left out,
    because their bits differ from those of a product and a sum."""
    kept = [t for t in backend.templates if t.loss <= limit and not (each_rounds and _multiplies_and_adds(t))]
    return FilteredBackend(backend, kept)


def exact_only(backend: Backend) -> FilteredBackend:
    """Backend restricted to kernels whose results have the same bits as those of the unoptimized graph. An op without
    such a kernel keeps all kernels that compute that op alone, unless it is a composite (an op defined by a
    decomposition).

    Fused and generated kernels are excluded: they keep intermediates in wider dtypes than the graph, or use fused
    multiply-add.
    """
    exact = {_op(t) for t in backend.templates if t.exact and t.family != "view"}
    lossless = [t for t in backend.templates if not t.loss]
    kept = [t for t in lossless if t.exact or not (_op(t) in exact or _is_composite(t) or _is_fused(t))]
    return FilteredBackend(backend, kept, generates=False)


def with_kernels(graph: Graph, backends: Sequence[Backend]) -> Graph:
    """The graph with decompositions in place of elementwise composite ops that none of the backends can compute: they
    have no library kernel and no backend generates kernels. Saturation decomposes all other composites itself.
    """
    if any(b.generates for b in backends):
        return graph
    known = {_op(t) for b in backends for t in b.templates}
    missing = {n.op for n in graph.nodes() if n.entry.composite and n.entry.pointwise} - known
    return graph.with_roots(expand_all(graph.roots, only=missing)) if missing else graph


def _op(template: Template) -> str:
    return getattr(template.term, "op", "")


def _is_composite(template: Template) -> bool:
    """Whether a kernel's op is composite; its expansion has exact kernels."""
    return _op(template) in OPS and OPS[_op(template)].composite


def _multiplies_and_adds(template: Template) -> bool:
    """Whether a kernel of the package computes x * y + z."""
    ops = [_pattern_op(a) for a in getattr(template.term, "args", ())]
    return _op(template) == "add" and "mul" in ops and not template.name.startswith(USER_PREFIX)


def _pattern_op(pattern: object) -> str:
    return pattern.op if isinstance(pattern, PatternCall) else ""


def _is_fused(template: Template) -> bool:
    """Whether a kernel computes more than one op."""
    return any(isinstance(a, PatternCall) for a in getattr(template.term, "args", ()))


__all__ = ["FilteredBackend", "exact_only", "with_kernels", "within_loss"]
