"""Defines the contract of a backend: the protocol `Target`, with all members that other modules use, and its defaults,
`BackendBase`.

How to add a backend: docs/backends.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, Self

from ..costdb.keys.device import MachineKey, host_key, toolchain_key
from ..egraph.ir.graph import Graph
from ..egraph.ir.tensor import Tensor
from ..egraph.ops.ops import Type
from ..egraph.view.view import EGraphView
from ..errors import UsageError
from ..extract.model.backend import Backend, Generation
from ..extract.model.kernel import Call, Template
from .device import HOST, TargetDevice

if TYPE_CHECKING:
    from ..egraph.saturate.lift import Numbers
    from .generate.lowerings import Lowerings

__all__ = ["BackendBase", "Measuring", "Target"]

#: Where kernels are checked and timed: "host" is a worker process on NumPy arrays, "gpu" worker processes on Torch
#: tensors of the GPU, "" nowhere: kernels are priced by prediction.
Measuring = Literal["", "host", "gpu"]


class Target(Backend, Protocol):
    """Protocol of a backend, with all members that the registry, code emission and measuring use."""

    @property
    def device(self) -> TargetDevice:
        """The device of all kernels."""
        ...

    @property
    def operands(self) -> str:
        """Kind of operand that emitted code on the host passes to kernels: "numpy" (arrays), "torch" (tensors) or
        "address" (memory addresses). Not used on other devices, where operands are tensors.
        """
        ...

    @property
    def measured(self) -> Measuring:
        """Kind of process in which the backend's kernels are measured: "host" or "gpu"; "": not on this machine."""
        ...

    @property
    def prefetches(self) -> bool:
        """Whether kernels that are launched early read weights and states before they wait for the previous kernel
        (operands in `Call.constant`)."""
        ...

    def reads_whole(self, template: Template, call: Call) -> bool:
        """Whether such a kernel reads all of its weights before it waits, in the schedule of `call`: a block covers the
        sums over them, so that there is no loop of which only the first iteration is read early."""
        ...

    def machine(self) -> MachineKey:
        """Device, driver and toolchain under which times of the kernels are stored."""
        ...

    def restricted(self, keep: Callable[[Template], bool]) -> Target:
        """The backend with the library kernels that `keep` accepts. Generated kernels are not affected."""
        ...

    def with_templates(self, templates: Sequence[Template]) -> Target:
        """A copy of the backend with other library kernels (`Backend.with_templates`)."""
        ...

    def opened(self, lowerings: Lowerings | None = None) -> Backend:
        """The backend for one optimization, with mutable state; a backend without such state returns itself.

        `lowerings`: holds the states of all backends of the optimization. None: a new state, which nothing else uses.
        """
        ...

    def stand_ins(self, graph: Graph) -> Sequence[tuple[Template, Call]]:
        """Kernels, each with a call, that contain the compiled code which kernels of the graph will need: a measuring
        process compiles them while the graph is rewritten."""
        ...

    def template(
        self, roots: Sequence[Tensor], transposed: Sequence[str] = (), last: bool = False, precision: str = "ieee"
    ) -> Template:
        """The generated kernel of the terms `roots` over inputs.

        The parameters are also fields of tuning jobs (`Template.job_fields`). `transposed`: weights whose layout
        changes at load time. `last`: the output is channels-last. `precision`: name of the input precision of float32
        matrix products. Raises UsageError if the backend generates no kernels.
        """
        ...

    def any_size(
        self, template: Template, call: Call, numbers: Numbers, searched: Mapping[str, int],
        probes: Iterable[Mapping[str, int]], others: Iterable[Backend] = (),
    ) -> Any:  # fmt: skip
        """The kernel for every size that corresponds to a generated kernel, with its call
        (`generate.free_terms.SizedCall`); None if there is none.

        `numbers`: the call's generic sizes -> size expressions; `searched`: sizes at which the kernel is priced;
        `probes`: sizes at which it is checked; `others`: backends whose kernels may be used at sizes that this one does
        not support.
        """
        ...


class BackendBase:
    """Defaults of `Target`: a library of kernels on NumPy arrays, measured on the CPU.

    Subclasses set at least `name` and `templates`.
    """

    name: str
    helpers: Mapping[str, str] = {}
    device: TargetDevice = HOST
    operands: str = "numpy"
    measured: Measuring = "host"
    generates: ClassVar[bool] = False
    prefetches: ClassVar[bool] = False
    several: bool = False

    def reads_whole(self, template: Template, call: Call) -> bool:
        """Always True, the default for backends that do not know their kernels' loops (`Target.reads_whole`)."""
        return True

    @cached_property
    def templates(self) -> Sequence[Template]:
        """The library kernels that the backend offers (`Backend.templates`): none by default."""
        return ()

    def unavailable(self) -> str:
        """Reason why the backend cannot be used here: "" by default, for backends that are usable everywhere."""
        return ""

    def machine(self) -> MachineKey:
        """Key of this CPU, with the tools whose versions may change a kernel's time."""
        return host_key(toolchain_key(self.name))

    def restricted(self, keep: Callable[[Template], bool]) -> Self:
        """The backend with the library kernels that `keep` accepts (`Target.restricted`)."""
        return self.with_templates(tuple(filter(keep, self.templates)))

    def with_templates(self, templates: Sequence[Template]) -> Self:
        """A copy of the backend with other library kernels."""
        found = copy(self)
        vars(found)["templates"] = templates
        return found

    def opened(self, lowerings: Lowerings | None = None) -> Backend:
        """The backend itself, since a library has no state."""
        return self

    def generated(
        self, view: EGraphView, given: frozenset[int], types: Sequence[Type], enough: Callable[[], bool]
    ) -> Iterator[Generation]:
        """The kernels that the backend generates for an e-graph (`Backend.generated`): none by default."""
        return iter(())

    def packed_products(self, view: EGraphView, given: frozenset[int], types: Sequence[Type]) -> Iterator[Generation]:
        """The kernels of products with packed weights that are generated whatever the time
        (`Backend.packed_products`): none by default."""
        return iter(())

    def prepare(self, asked: Sequence[tuple[Template, Call]]) -> Iterator[None]:
        """Lower calls of generated kernels in advance (`Backend.prepare`): nothing to do by default, for library
        kernels."""
        return iter(())

    def stand_ins(self, graph: Graph) -> Sequence[tuple[Template, Call]]:
        """Kernels to compile before kernels of the graph are measured (`Target.stand_ins`): none by default."""
        return ()

    def template(
        self, roots: Sequence[Tensor], transposed: Sequence[str] = (), last: bool = False, precision: str = "ieee"
    ) -> Template:
        """The generated kernel of terms, with the parameters of `Target.template`: by default raises UsageError, as a
        library generates no kernels."""
        raise UsageError(f"the backend {self.name} generates no kernels")

    def any_size(
        self, template: Template, call: Call, numbers: Numbers, searched: Mapping[str, int],
        probes: Iterable[Mapping[str, int]], others: Iterable[Backend] = (),
    ) -> Any:  # fmt: skip
        """The kernel for every size made from a generated kernel (`Target.any_size`): none (None) by default, since
        generated kernels are for one choice of sizes."""
        return None
