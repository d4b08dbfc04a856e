"""Defines the protocols of code generators (`Emitter`) and of the kernel launches that they emit (`Launch`), with
default members."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

from ...egraph.ir.tensor import Tensor
from ..ir.index import Axis
from ..ir.kernel import Kernel
from ..ir.precision import Precision
from ..ir.tiling import Shape
from ..lowering.split_reduction import split, splittable
from .schedule import Move, Numbers, Schedule


class Launch(Protocol):
    """One launch of an emitted kernel: the kernel's source, and the statement that launches it."""

    @property
    def name(self) -> str:
        """Name of the kernel, which `source` defines."""
        ...

    @property
    def source(self) -> str:
        """Python statement that defines the kernel, with its source."""
        ...

    @property
    def definitions(self) -> Mapping[str, str]:
        """Python definitions that the launch needs, the kernel's included: name -> source."""
        ...

    def call(self, names: Mapping[str, str]) -> str:
        """The Python statement that launches the kernel; `names` maps its buffers to Python variables.

        Emitters of functional kernels return an expression of the result, which does not mention the output.
        """
        ...


class LaunchBase:
    """Base of emitted launches, with the default of `Launch.definitions`."""

    name: str
    source: str

    @property
    def definitions(self) -> Mapping[str, str]:
        """Python definitions that the launch needs (name -> source): only the kernel's own."""
        return {self.name: self.source}


class Emitter(Protocol):
    """Protocol of code generators from kernel IR to source.

    `StrategyEmitter` (generate/strategy.py) implements all of it; `EmitterBase` has the defaults of the data members.
    `name`: the backend's name. `version`: raise it when the text emitted for the same kernel and schedule changes.
    """

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> str: ...

    def version_of(self, roots: Sequence[Tensor]) -> str:
        """Version of the text that the emitter writes for kernels that compute the terms `roots`; part of the key of
        stored measurements."""
        ...

    @property
    def arrays(self) -> bool:
        """Whether weights are NumPy arrays, rather than tensors, when their layout is changed at load time."""
        ...

    @property
    def carries(self) -> bool:
        """Whether a kernel that replaces some elements of an operand (scatter) also copies the other elements to the
        output; if not, they are copied before the kernel runs."""
        ...

    @property
    def contracts(self) -> bool:
        """Whether compilers of the emitted text contract `x * y + z` to a fused multiply-add and approximate quotients.
        If so, arithmetic that decides whole numbers or truth values is emitted with operations that round once
        (`lowering/ieee_decisions.py`)."""
        ...

    @property
    def setup(self) -> tuple[str, ...]:
        """Names of the imports and helper definitions that every kernel needs (keys of `Backend.helpers`)."""
        ...

    @property
    def needs(self) -> tuple[str, ...]:
        """Python modules that must be importable for kernels of this emitter to run."""
        ...

    @property
    def precisions(self) -> tuple[Precision, ...]:
        """Reduced input precisions of float32 products that `rounding` supports, the slower ones first."""
        ...

    @property
    def across(self) -> Mapping[Precision, Precision]:
        """Precisions that need both operands contiguous along K -> the precision to use for other operands."""
        ...

    def space(self, kernel: Kernel, shape: Shape, splits: bool) -> Sequence[Numbers]:
        """Candidate schedules (parameter name -> integer) of `kernel`, whose axes have the roles `shape` (row, column,
        batch, reduction), best guess first. `splits`: whether split reduction (split-K) is legal."""
        ...

    def rounding(self, kernel: Kernel, shape: Shape, splits: bool, precision: Precision) -> Sequence[Numbers]:
        """Candidate schedules of float32 matrix products whose operands are rounded to the input `precision`; best
        guess first. `shape`: roles of the kernel's axes (row, column, batch, reduction). `splits`: whether split
        reduction (split-K) is legal."""
        ...

    def fits(self, kernel: Kernel, shape: Shape, schedule: Numbers, splits: bool) -> bool:
        """Whether `schedule` (parameter name -> integer) is legal for `kernel`. `splits`: whether split reduction
        (split-K) is legal."""
        ...

    def parse(self, schedule: Numbers) -> Schedule:
        """The typed form of `schedule` (parameter name -> integer). Raises UsageError if its parameters are those of no
        schedule class of this emitter."""
        ...

    def moves(self, schedule: Numbers) -> Iterator[Move]:
        """Yields the changes of one parameter that the schedule search tries from `schedule`, whether or not the
        results are legal."""
        ...

    def warp_specialized(self, schedule: Numbers) -> bool:
        """Whether warps have different roles (producers, consumers) in a kernel with this schedule."""
        ...

    def launches(self, found: Lowered, schedule: Numbers, name: str) -> Sequence[Launch]:
        """Emit the lowered kernel `found` in a schedule; returns its launches in execution order. Names of their
        kernels begin with `name`.

        Raises Unfusable if the kernel cannot be emitted.
        """
        ...

    def emits(self, found: Lowered, schedule: Numbers) -> bool:
        """Whether `launches` can emit the lowered kernel `found` in `schedule`, one of its candidate schedules."""
        ...

    def masked(self, schedule: Numbers) -> bool:
        """Whether the text emitted with `schedule` for extents larger than a tile, and not divisible by it, is also
        right for extents smaller than the tile (generate/form_search.py)."""
        ...

    def sized_launch(self, launch: Any, statement: str, definitions: dict[str, str]) -> tuple[str, dict[str, str]]:
        """Change the launch `statement` and the `definitions` (name -> source) of a kernel made for one choice of sizes
        so that they serve all sizes; returns both.

        The grid becomes an argument of the statement, since it may depend on sizes; `SIZES_<launch name>` is a
        placeholder for the size arguments.
        """
        ...

    def size_arguments(self, names: Sequence[str]) -> str:
        """Python text of the launch arguments that pass the values of the sizes `names`, which replaces the placeholder
        of `sized_launch`."""
        ...

    def with_sizes(self, text: Any, name: str, sizes: Sequence[str], prefix: str) -> tuple[str, list[str]] | None:
        """The text of the kernel function `name` for every size, with the sizes that became its parameters.

        `text`: emitted text with holes for numbers that depend on sizes (a `size_text.Text`). Each of `sizes` (names)
        that a hole depends on becomes an integer parameter called `prefix` + name. None if a size occurs where the
        compiler needs a constant.
        """
        ...


class EmitterBase:
    """Defaults of `Emitter`: no helpers, no required modules, no reduced precision, no kernels for free sizes."""

    version: str
    contracts: bool = False

    def version_of(self, roots: Sequence[Tensor]) -> str:
        """The emitter's version, which is the same for all terms (`Emitter.version_of`)."""
        return self.version

    def masked(self, schedule: Numbers) -> bool:
        """Whether the emitted text is also right for extents smaller than a tile (`Emitter.masked`): never
        by default."""
        return False

    def sized_launch(self, launch: Any, statement: str, definitions: dict[str, str]) -> tuple[str, dict[str, str]]:
        """`statement` and `definitions` unchanged, since kernels of this emitter take no sizes
        (`Emitter.sized_launch`)."""
        return statement, definitions

    def size_arguments(self, names: Sequence[str]) -> str:
        """Python text of the launch arguments that pass the values of the sizes `names`, such as ", T, B"; "" without
        sizes (`Emitter.size_arguments`)."""
        return "".join(f", {n}" for n in names)

    def with_sizes(self, text: Any, name: str, sizes: Sequence[str], prefix: str) -> tuple[str, list[str]] | None:
        """Add size parameters to a kernel function (`Emitter.with_sizes`): by default returns None, since this emitter
        has no kernels with size parameters."""
        return None

    carries: bool = False
    arrays: bool = False
    setup: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    precisions: tuple[Precision, ...] = ()
    across: Mapping[Precision, Precision] = {}


@dataclass(frozen=True)
class Lowered:
    """Result of lowering a call to the kernel IR: the kernel, the roles of its axes (row, column, batch, reduction)
    (`shape`), and its candidate schedules (`space`: parameter name -> integer, best guess first).

    `constant`: operands that may be read before the previous kernel has ended. `made`, `cut`: caches of launches by
    name and of split kernels by number of parts.
    """

    kernel: Kernel
    shape: Shape
    space: tuple[Numbers, ...]  # candidate schedules in stored form, best guess first
    constant: frozenset[str] = frozenset()  # operands that may be read before the previous kernel has ended
    # kernel name -> launches
    made: dict[str, Sequence[Launch]] = field(default_factory=dict, compare=False, repr=False)
    # number of parts -> kernels of the split reduction
    cut: dict[int, tuple[Kernel, Kernel]] = field(default_factory=dict, compare=False, repr=False)

    @cached_property
    def cuts(self) -> bool:
        """Whether the kernel's longest reduction can be split into parts that are combined afterwards (split-K)."""
        return can_split(self.kernel, self.shape)

    def halves(self, parts: int) -> tuple[Kernel, Kernel]:
        """The two kernels of the longest reduction split into `parts` parts: (one of partial results, one that combines
        them)."""
        if parts not in self.cut:
            self.cut[parts] = split(self.kernel, split_axis(self.shape), parts)
        return self.cut[parts]


@dataclass(frozen=True)
class PackedLowered:
    """A lowered kernel as a worker process sends it: what its price depends on (candidate schedules; operations of a
    call with the best guess, `GeneratedKernel.effort`), and the rest pickled, since few kernels are ever emitted."""

    space: tuple[Numbers, ...]
    effort: float
    content: bytes  # (kernel, roles of its axes)

    @classmethod
    def of(cls, found: Lowered, effort: float) -> PackedLowered:
        """A lowered kernel, packed."""
        content = pickle.dumps((found.kernel, found.shape), pickle.HIGHEST_PROTOCOL)
        return cls(found.space, effort, content)

    def opened(self) -> Lowered:
        """The lowered kernel."""
        kernel, shape = pickle.loads(self.content)
        return Lowered(kernel, shape, self.space)


def split_axis(shape: Shape) -> Axis:
    """The axis that split-K divides among blocks: of a kernel whose axes have the roles `shape` (row, column, batch,
    reduction), the longest reduction axis that is not inside another reduction."""
    return max(shape.outer, key=lambda a: a.size)


def can_split(kernel: Kernel, shape: Shape) -> bool:
    """Whether split-K is legal for `kernel`, whose axes have the roles `shape` (row, column, batch, reduction): its
    longest reduction axis has even extent and can be split."""
    if not shape.outer or (axis := split_axis(shape)).size % 2:
        return False
    return splittable(kernel, axis, 2)
