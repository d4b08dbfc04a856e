"""Restriction of backends to the kernels that a tolerance allows."""

from __future__ import annotations

from collections.abc import Sequence

from ..egraph.ir.ops import OPS
from ..egraph.ir.pattern import Call
from ..extract.model.kernel import Backend, Template


class FilteredBackend:
    """A backend restricted to the given templates, and to no generated kernels unless `generates`.

    `base` is a backend with its state of one optimization (`Lowerings.opened`). `generated`, `prepare` and `several`
    are the optional parts of a backend that candidate matching reads.
    """

    def __init__(self, base: Backend, templates: Sequence[Template], *, generates: bool = True) -> None:
        self.name, self.device, self.helpers = base.name, base.device, base.helpers
        self.templates = tuple(templates)
        self.unavailable = base.unavailable
        self.generated = getattr(base, "generated", None) if generates else None
        self.prepare = getattr(base, "prepare", None)
        self.several = getattr(base, "several", False)


def within_loss(backend: Backend, limit: float) -> FilteredBackend:
    """The backend with the kernels whose operand rounding loses at most `limit` (relative)."""
    return FilteredBackend(backend, [t for t in backend.templates if t.loss <= limit])


def exact_only(backend: Backend) -> FilteredBackend:
    """The backend with its bitwise-exact kernels, and with all kernels of single atomic ops that have no exact kernel.

    Fused and generated kernels are excluded: they keep intermediates in wider dtypes than the graph, or use fused
    multiply-add.
    """
    exact = {_op(t) for t in backend.templates if t.exact and t.family != "view"}
    lossless = [t for t in backend.templates if not t.loss]
    kept = [t for t in lossless if t.exact or not (_op(t) in exact or _is_composite(t) or _is_fused(t))]
    return FilteredBackend(backend, kept, generates=False)


def _op(template: Template) -> str:
    return getattr(template.term, "op", "")


def _is_composite(template: Template) -> bool:
    """Whether a kernel's op is composite; its expansion has exact kernels."""
    return _op(template) in OPS and OPS[_op(template)].composite


def _is_fused(template: Template) -> bool:
    """Whether a kernel computes more than one op."""
    return any(isinstance(a, Call) for a in getattr(template.term, "args", ()))


__all__ = ["FilteredBackend", "exact_only", "within_loss"]
