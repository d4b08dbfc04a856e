"""Defines backends that generate kernels for the fusion groups (terms for one kernel) of an e-graph view, and such
kernels for every size.

A `KernelGenerator` describes a backend and is immutable; its `Lowering` (backend_lowering.py) belongs to one
optimization.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ...egraph.ir.tensor import Tensor
from ...egraph.ops.ops import Type
from ...egraph.saturate.lift import Numbers
from ...egraph.view.view import EGraphView
from ...errors import UsageError
from ...extract.fusion.policy import FUSION_POLICIES, FusionPolicy
from ...extract.model.backend import Backend, Generation
from ...extract.model.kernel import Call, Template
from ...imported import installed
from ..contract import BackendBase
from ..gpu_backend import GpuBackend
from ..ir.precision import IEEE, PRECISIONS
from .any_size import sized_kernel
from .backend_lowering import Lowering
from .emitter import Emitter
from .lowerings import Lowerings
from .template import GeneratedKernel, template_of


@dataclass(frozen=True, eq=False)
class KernelGenerator(BackendBase):
    """A backend that generates kernels from an e-graph view. Immutable; `opened` returns the mutable `Lowering`.

    `emitter`: writes the kernels' source; `helpers`: definitions that the source may need, by name; `templates`:
    library kernels offered besides. `several`: whether to generate multi-output kernels. `vectors`: maximum number of
    rows of a product that counts as skinny GEMM (bound by reading weights), for which transposed weight layouts are
    tried too.
    """

    emitter: Emitter
    helpers: Mapping[str, str] = field(default_factory=dict)
    templates: Sequence[Template] = ()
    several: bool = False
    vectors: int = 1
    generates: ClassVar[bool] = True

    @property
    def name(self) -> str:  # type: ignore[override]
        """Name of the backend, which is that of its emitter."""
        return self.emitter.name

    def unavailable(self) -> str:
        """Why the backend is unusable on this machine, as a message; "" if it is usable."""
        return missing_module(self.emitter.needs) or super().unavailable()

    def fusion_policies(self, view: EGraphView) -> tuple[FusionPolicy, ...]:
        """The policies by which fusion groups (terms that one kernel computes) of the e-graph `view` are grown, one
        after the other: which ops a group may contain, and how many."""
        return FUSION_POLICIES

    def opened(self, lowerings: Lowerings | None = None) -> Lowering:
        """The kernels that one optimization generates with this backend: the `Lowering` that `lowerings` holds for it,
        or a new one that nothing else shares."""
        return (Lowerings() if lowerings is None else lowerings).of(self)

    def generated(
        self,
        view: EGraphView,
        given: frozenset[int],
        types: Sequence[Type],
        enough: Callable[[], bool] = lambda: False,
    ) -> Iterator[tuple[Template, tuple[int, ...], tuple[int, ...]]]:
        """Yields (template, output e-classes, operand e-classes) of the kernels for the fusion groups (terms that one
        kernel computes) of the e-graph `view`, from a new `Lowering` each time. `given`: e-classes in memory before any
        kernel runs. `types`: type of each e-class. Once `enough` returns true, no more groups are formed."""
        return self.opened().generated(view, given, types, enough)

    def packed_products(self, view: EGraphView, given: frozenset[int], types: Sequence[Type]) -> Iterator[Generation]:
        """The kernels of products with packed weights (`Lowering.packed_products`), from a new `Lowering` each time."""
        return self.opened().packed_products(view, given, types)

    def prepare(self, asked: Sequence[tuple[Template, Call]]) -> Iterator[None]:
        """Lower the pairs `asked` of template (a kernel's pattern and code) and call in worker processes, before they
        are needed; yields after each template.

        The lowered kernels go to a new `Lowering` (`Lowering.prepare`).
        """
        return self.opened().prepare(asked)

    def lowering(self, lowerings: Lowerings) -> Lowering:
        """A new `Lowering` (generated kernels of one optimization) of this backend, which shares the worker processes
        of `lowerings`."""
        return Lowering(self, lowerings)

    def template(
        self, roots: Sequence[Tensor], transposed: Sequence[str] = (), last: bool = False, precision: str = IEEE.name
    ) -> GeneratedKernel:
        """The generated kernel that computes the terms `roots` over inputs (`Target.template`).

        `transposed`: names of weights that are transposed at load time; `last`: whether the output is channels-last;
        `precision`: name of the input precision of float32 products. Raises UsageError for an unknown precision.
        """
        found = next((p for p in PRECISIONS if p.name == precision), None)
        if found is None:
            raise UsageError(f"there is no precision {precision!r}", hint=f"one of {[p.name for p in PRECISIONS]}")
        return template_of(self.emitter, roots, transposed, last, found)


class GpuGenerator(KernelGenerator, GpuBackend):
    """Base of backends that generate kernels for an NVIDIA GPU."""

    def any_size(
        self, template: Template, call: Call, numbers: Numbers, searched: Mapping[str, int],
        probes: Iterable[Mapping[str, int]], others: Iterable[Backend] = (),
    ) -> Any:  # fmt: skip
        """The kernel for every size made from `template` and `call`, a generated kernel at generic sizes (primes that
        stand for free sizes), at which it is priced. None if its terms hold at these sizes only.

        `numbers`: generic size -> size expression. `others`: backends whose kernels may serve sizes for which the
        chosen schedule has none. `searched`, `probes`: not used (`Target.any_size`).
        """
        assert isinstance(template, GeneratedKernel)  # the backend has no others
        emitters = [b.emitter for b in others if isinstance(b, KernelGenerator | Lowering) and b.name != self.name]
        return sized_kernel(template, call, numbers, emitters)


def missing_module(modules: Iterable[str]) -> str:
    """Message that names the first of `modules` that is not installed; "" if all are."""
    return next((f"{module} is not installed" for module in modules if not installed(module)), "")
