"""Defines what matching and extraction need of a backend: its device, its library kernels, and the kernels that it
generates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from ...egraph.ops.ops import Type
from ...egraph.view.view import EGraphView
from .kernel import Call, Template


class Device(Protocol):
    """Processor with its memory, on which the kernels of a backend run. Devices of equal name share memory."""

    @property
    def name(self) -> str:
        """Name in plans, manifests and reports, such as "cpu"."""
        ...

    @property
    def on_gpu(self) -> bool:
        """Whether the device is a GPU: it has its own memory, launches are asynchronous, and generated kernels are
        compiled for the GPU that plans target.
        """
        ...

    @property
    def any_size(self) -> bool:
        """Whether programs for the device may have free sizes (one program for all values of a dimension)."""
        ...


#: A generated kernel that one fusion group permits: (template, output classes, operand classes).
Generation = tuple[Template, tuple[int, ...], tuple[int, ...]]


class Backend(Protocol):
    """A set of kernels for one device. Several backends may share one device (NumPy and Torch share "cpu"). This
    protocol has the members that matching and extraction use; `backends.contract.Target` adds members for emission and
    measuring, and `BackendBase` the defaults.
    """

    @property
    def name(self) -> str:
        """Unique name, recorded in templates (kernels' patterns and code) and in keys of measurements."""
        ...

    @property
    def device(self) -> Device:
        """The device of all kernels."""
        ...

    @property
    def helpers(self) -> Mapping[str, str]:
        """Name -> source text of the imports and helper functions that templates (kernels' patterns and code) ask for
        by name in `setup`."""
        ...

    @property
    def templates(self) -> Sequence[Template]:
        """The library kernels, including views."""
        ...

    @property
    def generates(self) -> bool:
        """Whether the backend generates kernels for fusion groups (`generated` yields any)."""
        ...

    @property
    def several(self) -> bool:
        """Whether the backend generates kernels with several outputs."""
        ...

    def unavailable(self) -> str:
        """Reason why the backend cannot be used here; empty if it can."""
        ...

    def with_templates(self, templates: Sequence[Template]) -> Backend:
        """A copy of the backend with other library kernels; generated kernels are not affected."""
        ...

    def opened(self, lowerings: Any = None) -> Backend:
        """A copy of the backend with the mutable state of one optimization (lowered kernels); the backend itself if it
        has no such state.

        `lowerings`: the state that the backends of one optimization share (generate.lowerings.Lowerings); None: a
        new one.
        """
        ...

    def generated(
        self, view: EGraphView, given: frozenset[int], types: Sequence[Type], enough: Callable[[], bool]
    ) -> Iterator[Generation]:
        """The kernels that the backend generates for fusion groups of a view; none for a library.

        `given`: e-classes that are in memory before any kernel runs. `types`: storage type of each e-class. No further
        groups are grown once `enough()` returns True.
        """
        ...

    def packed_products(self, view: EGraphView, given: frozenset[int], types: Sequence[Type]) -> Iterator[Generation]:
        """The generated kernels of products of few rows with packed weights, without anything fused: whatever the time,
        they are generated and bound, because a plan without them reads expanded weights, up to eight times as many
        bytes. None for a library and on a GPU. The parameters are those of `generated`.
        """
        ...

    def prepare(self, asked: Sequence[tuple[Template, Call]]) -> Iterator[None]:
        """Lower generated templates (kernels' patterns and code) for calls (to the kernel IR), before
        `Template.applies` needs the result. An iterator, to be exhausted or abandoned; it yields after each template.
        """
        ...


__all__ = ["Backend", "Device", "Generation"]
