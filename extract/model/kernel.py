"""Defines kernel templates (kernels' patterns and code, declared by backends), kernel calls, and candidate kernels
bound to e-classes.

A *template* pairs a kernel's semantics (a pattern of the rule language) with a code template. A *candidate* is a
template matched at an e-class: input vertices, output vertices, layouts. This module knows no particular backend. A
generated kernel (a subgraph lowered through the kernel IR) is a candidate whose template was made for it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from ...egraph.ir.tensor import Tensor
from ...egraph.ops.ops import Type
from ...egraph.patterns.pattern import Term
from ...egraph.patterns.pattern_attrs import Attr
from ...egraph.types.dims import DimExpr, concrete

Strides = tuple[int, ...]  # in elements
MAX_LAYOUT_COMBINATIONS = 64  # of operand layouts per match


def contiguous(shape: Sequence[int]) -> Strides:
    """Row-major strides of a shape, in elements. An axis of size 1 has the stride it would have at a larger size."""
    found, step = [], 1
    for size in reversed(shape):
        found.append(step)
        step *= size if isinstance(size, DimExpr) else max(int(size), 1)
    return tuple(reversed(found))


@dataclass(frozen=True)
class Operand:
    """An operand of a kernel: dtype and shape in memory, and strides in elements."""

    type: Type
    strides: Strides

    @property
    def dense(self) -> bool:
        """Whether the layout is row-major without gaps (strides of size-1 axes are ignored)."""
        want = contiguous(self.type.shape)  # type: ignore[arg-type]
        return all(s == w or d == 1 for s, w, d in zip(self.strides, want, self.type.shape))


@dataclass(frozen=True)
class Call:
    """A kernel call as a code template sees it: operands, output, attributes, and the names in the emitted source.

    Sizes, strides and attributes may be expressions in free sizes; `tuned` then has the concrete shapes for which
    weights are packed. `schedule`: values of the schedule parameters of a generated kernel. `constant`: names of the
    operands that no earlier kernel of the program writes, so that they may be read before that kernel has ended.
    """

    operands: Mapping[str, Operand]
    output: Operand
    attrs: Mapping[str, Any]
    # operand (also "out", "scratch") -> expression in the source
    names: Mapping[str, str] = field(default_factory=dict)
    # tuning parameters of a generated kernel (tile sizes, options)
    schedule: Mapping[str, int] = field(default_factory=dict)
    more: tuple[Operand, ...] = ()  # outputs beyond the first: "out1", "out2" in the source
    tuned: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # operand -> shape for which weights are packed
    # operands that no earlier kernel of the program writes: weights, and states as they were before it
    constant: frozenset[str] = frozenset()

    @property
    def outputs(self) -> tuple[Operand, ...]:
        """All outputs, in the order of the template's terms."""
        return (self.output, *self.more)

    def packed_for(self, operand: str) -> tuple[int, ...]:
        """Shape of an operand for which the kernel's weights are packed: the operand's shape, or with free sizes the
        shape at which the kernel was tuned (`tuned`)."""
        return self.tuned.get(operand) or concrete(self.operands[operand].type.shape)

    @property
    def buffers(self) -> dict[str, Operand]:
        """Operand descriptions (type, strides) of all operands and outputs, by their names in the kernel's code."""
        return {**self.operands, **dict(zip(output_names(len(self.outputs)), self.outputs))}


def output_names(count: int) -> tuple[str, ...]:
    """Names of a kernel's outputs in code: out, out1, out2, …"""
    return ("out", *(f"out{n}" for n in range(1, count)))


Code = str | Callable[[Call], str]
Layout = Callable[[Call], Strides]
Check = Callable[[Call], bool]
Sources = Callable[[Call], Mapping[str, str]]
Schedules = Callable[[Call], Sequence[Mapping[str, int]]]
Moves = Callable[[Mapping[str, int]], Iterator[tuple[str, int, Mapping[str, int]]]]


class Template(Protocol):
    """One kernel of one backend: its semantics (a pattern) and its code.

    Implementations: `LibraryKernel`, whose code is declared, and `GeneratedKernel` (backends/generate/template.py),
    whose code is emitted from the kernel IR.

    Data members are documented at `KernelBase`, callable members at `LibraryKernel`; a callable member is None where a
    kernel has no such property. `space is None` means: nothing to tune, and no compiler to wait for.
    """

    @property
    def name(self) -> str: ...
    @property
    def backend(self) -> str: ...
    @property
    def pattern(self) -> str: ...
    @property
    def family(self) -> str: ...
    @property
    def when(self) -> tuple[str, ...]: ...
    @property
    def prep(self) -> Mapping[str, Code]: ...
    @property
    def inplace(self) -> tuple[str, ...]: ...
    @property
    def beside(self) -> tuple[tuple[str, ...], ...]: ...
    @property
    def dense(self) -> tuple[str, ...]: ...
    @property
    def setup(self) -> tuple[str, ...]: ...
    @property
    def exact(self) -> bool: ...
    @property
    def version(self) -> str: ...
    @property
    def loss(self) -> float: ...
    @property
    def rate(self) -> float: ...
    @property
    def searches(self) -> bool: ...

    @property
    def applies(self) -> Check | None: ...
    @property
    def layout(self) -> Layout | None: ...
    @property
    def flops(self) -> Callable[[Call], float] | None: ...
    @property
    def scratch(self) -> Callable[[Call], int] | None: ...
    @property
    def source(self) -> Sources | None: ...
    @property
    def space(self) -> Schedules | None: ...
    @property
    def fits(self) -> Check | None: ...
    @property
    def moves(self) -> Moves | None: ...
    @property
    def warp_specialized(self) -> Callable[[Mapping[str, int]], bool] | None: ...

    @property
    def roots(self) -> Sequence[Tensor]:
        """The terms that a generated kernel computes, one per output; empty for a library kernel."""
        ...

    @property
    def combinations(self) -> int:
        """Largest number of combinations of operand layouts that are considered per match."""
        ...

    @property
    def terms(self) -> tuple[Term, ...]:
        """The parsed pattern: one term per output."""
        ...

    @property
    def term(self) -> Term:
        """The term of the first output."""
        ...

    @property
    def guards(self) -> tuple[Attr, ...]:
        """The parsed guard conditions of `when`."""
        ...

    @property
    def operands(self) -> tuple[str, ...]:
        """Tensor variables of the pattern, in order of first use."""
        ...

    @property
    def identity(self) -> str:
        """Digest that identifies the kernel in keys of stored measurements; independent of shapes."""
        ...

    @property
    def reads_last(self) -> tuple[str, ...]:
        """Operands that must be channels-last images."""
        ...

    def reused_by(self, output: int) -> tuple[str, ...]:
        """Operands whose buffer the output with this index may reuse."""
        ...

    def write(self, call: Call) -> str:
        """Source text of the lines that run a call."""
        ...

    def write_prep(self, operand: str, weight: str, call: Call) -> str:
        """Source of an expression, run once at load, that converts a weight to the layout that the kernel reads.

        `operand`: name of the kernel's operand. `weight`: source text of the weight in its original layout.
        """
        ...

    def writes_out(self, call: Call) -> bool:
        """Whether the code stores its result in an output buffer that the program allocates (`out=`); otherwise it
        returns a new array."""
        ...

    def alike(self, call: Call) -> Hashable | None:
        """Deduplication key for tuning: calls with equal keys likely share the best schedule.

        None if a generated kernel cannot be lowered for the call.
        """
        ...

    def job_fields(self) -> dict[str, Any]:
        """JSON fields of a tuning job (a request to measure the kernel in another process) that regenerate the kernel
        from its pattern; empty for a library kernel."""
        ...

    @property
    def lifted_from(self) -> tuple[Template, Call] | None:
        """The kernel and call at generic sizes (primes that stand for free sizes during the search) from which a kernel
        for every size was made; None for other kernels."""
        ...

    @property
    def is_packed_product(self) -> bool:
        """Whether a generated kernel of a CPU is a product alone whose weights are computed from fewer bytes. It has
        few rows and no schedule to guess, so that its prediction is as good as a library kernel's."""
        ...

    def measured_as(self, call: Call) -> tuple[Template, Call]:
        """The (kernel, call) under which the cost store has the time of a call at concrete sizes; the kernel itself
        unless it was made for every size."""
        ...

    def bounds_of(self, call: Call) -> Sequence[Mapping[str, tuple[int, int]]]:
        """(least, largest) of each free size, for each of the sources between which a call chooses at run time by its
        sizes; empty if there is a single source for all sizes."""
        ...

    def conditions_of(self, call: Call) -> Sequence[str]:
        """Python expressions over the free sizes that must be true for a call; empty for most kernels."""
        ...


# ---------------------------------------------------------------- candidates and plans
class Vertex(NamedTuple):
    """An e-class stored in one layout (strides in elements)."""

    cls: int
    strides: Strides


@dataclass(frozen=True, slots=True)
class Candidate:
    """A kernel template bound to vertices (e-classes in a layout).

    Reads `inputs` (operand -> vertex), writes `output` and, for several outputs, `more`. `call`: the call with the
    types and strides of these vertices.

    Weight operands need no producing kernel: they are in memory from load time on. Views (an alias of their one input,
    no work) have family "view".
    """

    template: Template
    output: Vertex
    inputs: tuple[tuple[str, Vertex], ...]
    call: Call
    weights: frozenset[str] = frozenset()  # operands that are weight-only
    more: tuple[Vertex, ...] = ()  # outputs beyond the first

    @property
    def outputs(self) -> tuple[Vertex, ...]:
        """The vertices that the kernel computes, in the order of the template's terms."""
        return (self.output, *self.more)

    @property
    def is_view(self) -> bool:
        """Whether the candidate is an alias of its input, without work."""
        return self.template.family == "view"
