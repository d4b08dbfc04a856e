"""Holds the state of the kernel generation of one optimization: what each backend has lowered (backend_lowering.py),
and the worker processes that lower terms."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING

from ...egraph.ir.tensor import Tensor
from ...extract.model.backend import Backend
from ..ir.precision import PRECISIONS
from .lowering_jobs import Reply
from .lowering_pool import LowerPool

if TYPE_CHECKING:
    from .backend_lowering import Lowering
    from .generator import KernelGenerator


class Lowerings:
    """State of the kernel generation of one optimization: a `Lowering` per backend, and the pool of worker processes
    that lower terms. State is private to the optimization. `limit`: relative error that kernels may add by rounding
    operands. Not thread-safe."""

    def __init__(self, limit: float = 0.0, pool: LowerPool | None = None) -> None:
        self.limit, self.pool = limit, LowerPool(0) if pool is None else pool
        self.open: dict[str, Lowering] = {}  # by backend name

    def of(self, generator: KernelGenerator) -> Lowering:
        """The `Lowering` (generated kernels) of the backend `generator`, created on first use."""
        if generator.name not in self.open:
            self.open[generator.name] = generator.lowering(self)
        return self.open[generator.name]

    def opened(self, backend: Backend) -> Backend:
        """`backend` with the state that belongs to this optimization: the `Lowering` of a backend that generates
        kernels, the backend itself if it has no such state."""
        return backend.opened(self)

    def close(self) -> None:
        """End the worker processes, which start again when they are needed. Lowered kernels stay."""
        self.pool.close()

    def take_in(self, terms: tuple[Tensor, ...], reply: Reply, key: Hashable) -> None:
        """Store a worker's reply: the lowered kernels of `terms`, and the answer to the request with this `key`."""
        for name, found, forms in reply:
            lowering = self.open[name]
            made = {form: lowering._template(terms, *form[:2], PRECISIONS[form[2]]) for form in {f for f, *_ in found}}
            for form, call, lowered in found:
                made[form].lowered.setdefault(call, lowered)
            if forms is not None:
                lowering.answered[key] = [(made[form], effort, size) for form, effort, size in forms]
