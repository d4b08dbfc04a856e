"""Kernel templates declared by backends, candidate kernels bound to e-classes, and executable plans.

A *template* pairs a kernel's semantics (a pattern of the rule language) with a code template. A *candidate* is a
template matched at an e-class: input vertices, output vertices, layouts. This module knows no particular backend. A
generated kernel (a fusion group lowered through the kernel IR) is a candidate whose template was made for it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from html import escape
from typing import Any, NamedTuple, Protocol

from ...egraph.ir.dims import DimExpr, concrete
from ...egraph.ir.graph import Graph, Tensor
from ...egraph.ir.ops import Type
from ...egraph.ir.pattern import Attr, Term, parse_guard, parse_terms, variables
from ...egraph.view.view import EGraphView
from ...errors import UsageError
from .clock import Clock

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
    weights are packed."""

    operands: Mapping[str, Operand]
    output: Operand
    attrs: Mapping[str, Any]
    # operand (also "out", "scratch") -> expression in the source
    names: Mapping[str, str] = field(default_factory=dict)
    # tuning parameters of a generated kernel (tile sizes, options)
    schedule: Mapping[str, int] = field(default_factory=dict)
    more: tuple[Operand, ...] = ()  # outputs beyond the first: "out1", "out2" in the source
    tuned: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # operand -> shape for which weights are packed

    @property
    def outputs(self) -> tuple[Operand, ...]:
        """All outputs, in the order of the template's terms."""
        return (self.output, *self.more)

    def packed_for(self, operand: str) -> tuple[int, ...]:
        """Shape of an operand for which weights are packed: the tuned one if its sizes are free, otherwise its own."""
        return self.tuned.get(operand) or concrete(self.operands[operand].type.shape)

    @property
    def places(self) -> dict[str, Operand]:
        """Operand descriptions (type, strides) of all operands and outputs, by their names in the kernel's code."""
        return {**self.operands, **dict(zip(output_names(len(self.outputs)), self.outputs))}


def output_names(count: int) -> tuple[str, ...]:
    """Names of a kernel's outputs in code: out, out1, out2, …"""
    return ("out", *(f"out{n}" for n in range(1, count)))


OUTPUT_SEPARATOR = ";"  # between the terms of a pattern, one term per output
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
        """Largest number of operand-layout combinations per match."""
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

    def reused_by(self, output: int) -> tuple[str, ...]:
        """Operands whose buffer the output with this index may reuse."""
        ...

    def write(self, call: Call) -> str:
        """Source text of the lines that run a call."""
        ...

    def write_prep(self, operand: str, weight: str, call: Call) -> str:
        """The expression that prepares one weight operand at load."""
        ...

    def writes_out(self, call: Call) -> bool:
        """Whether the code writes into a given buffer (else it returns a fresh array)."""
        ...

    def alike(self, call: Call) -> Hashable | None:
        """Deduplication key for tuning: calls with equal keys likely share the best schedule.

        None if a generated kernel cannot be lowered for the call.
        """
        ...

    def job_fields(self) -> dict[str, Any]:
        """JSON fields of a tuning job that regenerate the kernel from its pattern; empty for a library kernel."""
        ...

    @property
    def lifted_from(self) -> tuple[Template, Call] | None:
        """The kernel and call at generic sizes from which a kernel for every size was made; None for other kernels."""
        ...

    def measured_as(self, call: Call) -> tuple[Template, Call]:
        """The kernel and call under which the cost store has the time of a call at concrete sizes."""
        ...


@dataclass(frozen=True, eq=False)
class KernelBase:
    """Data and derived members that all kernel templates have.

    `pattern` (rule language) is the kernel's semantics; its tensor variables are the operands. A kernel with several
    outputs has one term per output, separated by semicolons; its code writes into `out`, `out1`, … `family` groups
    kernels in reports and cost models; views (aliases of their one operand) have the family "view". `prep` maps
    operands that must be weight-only to an expression over `{w}` (the weight) evaluated once at load; the code then
    receives its value (a packed or transposed layout) instead of the weight. `inplace` lists operands whose buffer
    `out` may reuse, `beside` those of each further output. `dense` lists operands that must be contiguous ("*": all).
    `setup` names imports or helper definitions (keys of the backend's `helpers`) that the source must contain. `exact`:
    bitwise equal to the interpreter. `loss` is the relative error from rounding operands to fewer digits than they have
    in memory: the kernel is a candidate only where the tolerance allows that. `rate`: approximate ratio of its
    arithmetic throughput to the usual throughput of its operands' dtype.
    """

    name: str
    backend: str
    pattern: str
    family: str = field(default="pointwise", kw_only=True)
    when: tuple[str, ...] = field(default=(), kw_only=True)
    prep: Mapping[str, Code] = field(default_factory=dict, kw_only=True)
    inplace: tuple[str, ...] = field(default=(), kw_only=True)
    beside: tuple[tuple[str, ...], ...] = field(default=(), kw_only=True)
    dense: tuple[str, ...] = field(default=(), kw_only=True)
    setup: tuple[str, ...] = field(default=(), kw_only=True)
    exact: bool = field(default=False, kw_only=True)
    version: str = field(default="1", kw_only=True)
    loss: float = field(default=0.0, kw_only=True)
    rate: float = field(default=1.0, kw_only=True)

    @property
    def lifted_from(self) -> tuple[Template, Call] | None:
        """The kernel and call at generic sizes from which a kernel for every size was made (`Template.lifted_from`)."""
        return None

    def measured_as(self, call: Call) -> tuple[Template, Call]:
        """The kernel and call under which the cost store has the time of a call at concrete sizes.

        See `Template.measured_as`.
        """
        return self, call  # type: ignore[return-value]  # every kernel is a Template

    def reused_by(self, output: int) -> tuple[str, ...]:
        """Operands whose buffer the output with this index may reuse (`Template.reused_by`)."""
        return ((self.inplace, *self.beside)[output : output + 1] or ((),))[0]

    @cached_property
    def terms(self) -> tuple[Term, ...]:
        """The parsed pattern: one term per output (`Template.terms`)."""
        return parse_terms(self.pattern)

    @property
    def term(self) -> Term:
        """The term of the first output (`Template.term`)."""
        return self.terms[0]

    @cached_property
    def guards(self) -> tuple[Attr, ...]:
        """The parsed guard conditions of `when` (`Template.guards`)."""
        return tuple(map(parse_guard, self.when))

    @property
    def code_identity(self) -> str:
        """Declared identity of the code, a part of `identity`."""
        raise NotImplementedError

    @cached_property
    def identity(self) -> str:
        """Digest of name, pattern, guards, declared identity of the code and of weight preparation, and version."""
        prep = sorted((k, code_identity(v)) for k, v in self.prep.items())
        text = repr((self.name, self.pattern, self.when, self.code_identity, prep, self.version))
        return blake2b(text.encode(), digest_size=12).hexdigest()

    def write_prep(self, operand: str, weight: str, call: Call) -> str:
        """The expression that prepares one weight operand at load (`Template.write_prep`)."""
        code = self.prep[operand]
        return code(call) if callable(code) else code.format(w=weight, **{k: repr(v) for k, v in call.attrs.items()})


@dataclass(frozen=True, eq=False)
class LibraryKernel(KernelBase):
    """A kernel whose code a backend declares.

    `code` is the call: a format string over operand names, attribute names and `out`, or a function of a `Call` that
    returns the text. Code that mentions `{out}` writes into a given buffer; other code is an expression whose value is a
    fresh array without aliases.
    `applies(call)` is a final check of shapes, dtypes and layouts. `layout(call)` returns the strides of the output
    where they are not row-major (such as channels-last). `flops(call)` is the arithmetic, where the e-nodes' own count
    is wrong. `scratch(call)` returns the size in bytes of the workspace: the code gets it as `{scratch}`, an
    uninitialized byte array that other kernels reuse after the call. `source(call)` returns definitions (name -> text)
    that the call needs. `space(call)` lists the candidate schedules, the best guess first; `call.schedule` is one of
    them, or another one for which `fits(call)` (legality) holds. `moves(schedule)` gives the neighbours of a schedule,
    legal or not: (parameter, whether it grows (1) or shrinks (-1), schedule). `warp_specialized(schedule)`: whether
    warps of the kernel have different roles.
    """

    code: Code
    applies: Check | None = field(default=None, kw_only=True)
    layout: Layout | None = field(default=None, kw_only=True)
    flops: Callable[[Call], float] | None = field(default=None, kw_only=True)
    scratch: Callable[[Call], int] | None = field(default=None, kw_only=True)
    source: Sources | None = field(default=None, kw_only=True)
    space: Schedules | None = field(default=None, kw_only=True)
    fits: Check | None = field(default=None, kw_only=True)
    moves: Moves | None = field(default=None, kw_only=True)
    warp_specialized: Callable[[Mapping[str, int]], bool] | None = field(default=None, kw_only=True)

    @property
    def roots(self) -> Sequence[Tensor]:
        """No terms: a library kernel is found by its name."""
        return ()

    @property
    def combinations(self) -> int:
        """Largest number of operand-layout combinations per match (`Template.combinations`)."""
        return MAX_LAYOUT_COMBINATIONS

    @cached_property
    def operands(self) -> tuple[str, ...]:
        """Tensor variables of the pattern, in order of first use (`Template.operands`)."""
        return tuple(dict.fromkeys(v for term in self.terms for v in variables(term)))

    @property
    def code_identity(self) -> str:
        """Declared identity of the code, a part of `identity` (`KernelBase.code_identity`)."""
        return code_identity(self.code)

    def write(self, call: Call) -> str:
        """Source text of the lines that run a call (`Template.write`)."""
        return _written(self.code, call)

    def writes_out(self, call: Call) -> bool:
        """Whether the code writes into a given buffer (`Template.writes_out`)."""
        if isinstance(self.code, str):
            return "{out}" in self.code
        return mentions_out(self.code, self.operands, call)

    def alike(self, call: Call) -> Hashable | None:
        """Deduplication key for tuning; it is unique to the call, since library kernels share no schedules."""
        return self.identity, id(call)

    def job_fields(self) -> dict[str, Any]:
        """No fields: a tuning job finds a library kernel by its name."""
        return {}


def mentions_out(code: Callable[[Call], str], operands: Iterable[str], call: Call) -> bool:
    """Whether a code function writes into the output that it is given."""
    outputs = dict.fromkeys(output_names(len(call.outputs)), "__OUT__")
    names = {**{o: o for o in operands}, "scratch": "scratch", **outputs}
    return "__OUT__" in code(replace(call, names=names))


def identify(code: Callable[[Call], str], identity: str) -> Callable[[Call], str]:
    """Attach the text that represents `code` in `Template.identity`; returns `code`.

    The text is part of the key of stored measurements. It must differ between functions that write different source for
    equal calls, and must stay the same when a function or its module is renamed."""
    code.identity = identity  # type: ignore[attr-defined]
    return code


def identified(identity: str) -> Callable[[Callable[[Call], str]], Callable[[Call], str]]:
    """Decorator form of `identify`."""
    return lambda code: identify(code, identity)


def code_identity(code: Code) -> str:
    """The declared identity of a code template: a format string is its own identity.

    UsageError for a function without one.
    """
    if isinstance(code, str):
        return code
    found = getattr(code, "identity", None)
    if found is None:
        raise UsageError(
            f"the code function {code!r} of a kernel template has no declared identity",
            where="LibraryKernel.code",
            hint="wrap it in tensor_graphs.extract.model.kernel.identify(code, 'package.kernel[options]')",
        )
    return str(found)


def _written(code: Code, call: Call) -> str:
    if callable(code):
        return code(call)
    return code.format(**{k: repr(v) for k, v in call.attrs.items()}, **call.names)


class Device(Protocol):
    """Processor with its memory, in which the kernels of a backend work. Devices of equal name share memory."""

    @property
    def name(self) -> str:
        """Name in plans, manifests and reports, such as "cpu"."""
        ...

    @property
    def on_gpu(self) -> bool:
        """Whether kernels are launched on a GPU.

        It has its own memory, launches are asynchronous, and generated kernels are compiled for the GPU that plans
        target.
        """
        ...

    @property
    def any_size(self) -> bool:
        """Whether programs may have free sizes."""
        ...


#: A generated kernel that one fusion group permits: (template, output classes, operand classes).
Generation = tuple["Template", tuple[int, ...], tuple[int, ...]]


class Backend(Protocol):
    """A set of kernels for one device. Several backends may share one device (NumPy and Torch share "cpu").

    Everything that matching and extraction ask. `backends.contract.Target` adds members for emission and measuring, and
    `BackendBase` the defaults."""

    @property
    def name(self) -> str:
        """Unique name, recorded in templates and in keys of measurements."""
        ...

    @property
    def device(self) -> Device:
        """The device of all kernels."""
        ...

    @property
    def helpers(self) -> Mapping[str, str]:
        """Source of imports and helper functions that templates name in `setup`."""
        ...

    @property
    def templates(self) -> Sequence[Template]:
        """The library kernels, including views."""
        ...

    @property
    def generates(self) -> bool:
        """Whether `generated` yields kernels."""
        ...

    @property
    def several(self) -> bool:
        """Whether `generated` yields kernels with several outputs."""
        ...

    def unavailable(self) -> str:
        """Reason why the backend cannot be used here; empty if it can."""
        ...

    def with_templates(self, templates: Sequence[Template]) -> Backend:
        """A copy of the backend with other library kernels; generated kernels are not affected."""
        ...

    def opened(self, lowerings: Any = None) -> Backend:
        """The backend with mutable state of one optimization (lowered kernels).

        The backend itself if it has no such state.

        `lowerings`: the state that the backends of one optimization share (generate.generator.Lowerings); None: a
        new one.
        """
        ...

    def generated(
        self, view: EGraphView, given: frozenset[int], types: Sequence[Type], enough: Callable[[], bool]
    ) -> Iterator[Generation]:
        """The kernels that the backend generates for fusion groups of a view; none for a library.

        `given`: classes that are in memory. No further groups are grown once `enough()` returns True.
        """
        ...

    def prepare(self, asked: Sequence[tuple[Template, Call]]) -> Iterator[None]:
        """Lower calls of generated templates ahead of `Template.applies`; yields between templates."""
        ...


# ---------------------------------------------------------------- candidates and plans
class Vertex(NamedTuple):
    """An e-class stored in one layout (strides in elements)."""

    cls: int
    strides: Strides


@dataclass(frozen=True, slots=True)
class Candidate:
    """A kernel template bound to vertices.

    Reads `inputs` (operand -> vertex), writes `output` and, for several outputs, `more`.

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
        """All output vertices."""
        return (self.output, *self.more)

    @property
    def is_view(self) -> bool:
        """Whether the candidate is an alias of its input."""
        return self.template.family == "view"


@dataclass(frozen=True)
class Priced:
    """A candidate's price in µs.

    The value used, its prediction interval (low, high), its source, and the schedule it refers to. `shipped`: measured
    only elsewhere, by a row that came with the package.
    """

    us: float
    low: float
    high: float
    source: str  # measured | predicted | bound
    schedule: tuple[tuple[str, int], ...] = ()
    shipped: bool = False

    @property
    def origin(self) -> str:
        """The source as reports name it: "shipped" for a shipped measurement."""
        return "shipped" if self.shipped else self.source


class Measurer(Protocol):
    """Protocol of processes that time candidates; a failed measurement is recorded as a failure and priced infinite.

    `ahead`: whether measuring may begin before the rewritten graph is known, and continues while plans are solved for.
    `keeps`: whether kernels in flight when the time is up are kept for the next call; set by the caller.
    """

    keeps: bool

    @property
    def ahead(self) -> bool: ...

    @property
    def ready(self) -> bool:
        """Whether the measuring processes have started, or start at once."""
        ...

    @property
    def spent(self) -> Mapping[str, float]:
        """Counts and seconds of all measuring, for the report."""
        ...

    @property
    def clocks(self) -> list[tuple[str, Clock]]:
        """Clocks of the measuring processes, for the timeline."""
        ...

    def compile(self, wanted: Iterable[tuple[Template, Call]], seconds: float = ...) -> None:
        """Compile kernels ahead of their use in a program, for at most `seconds`."""
        ...

    def start(self) -> None:
        """Start the measuring processes without waiting for them."""
        ...

    def pause(self) -> None:
        """Free the memory of the measuring processes while nothing is measured, if restarting them is cheap."""
        ...

    def rest(self) -> None:
        """End the measurements in flight and make their rows durable; another search may use the measurer then."""
        ...

    def close(self) -> None:
        """End the measuring processes."""
        ...

    def measure(
        self, candidates: Iterable[Candidate], *, worth: Callable[[Candidate], float] | None = None, look: bool = False,
        later: Iterable[tuple[Candidate, bool]] = (), leave: bool = False,
    ) -> Sequence[Candidate]:  # fmt: skip
        """Measure candidates and store the results; returns when the rows are durable.

        With `leave`, returns as soon as few measurements are in flight: these candidates are returned and continue
        beside the next call's. The iterable may end early, when the time is up. `worth` gives the cost cutoff of a
        candidate in µs, above which further measuring is useless; it falls while others are measured. With `look`, only
        a few schedules. `later`: (candidate, `look`) pairs that may be requested next, for preparation in advance.
        """
        ...

    def unfinished(self, candidate: Candidate) -> bool:
        """Whether a measured candidate has untried schedules that are still worth measuring."""
        ...

    def further(self, candidate: Candidate) -> bool:
        """Permit more schedules for a candidate whose search ended at the usual number; returns whether there are more."""
        ...


class Pricer(Protocol):
    """Protocol of price sources: prices of candidates from measurements and predictions."""

    def price(self, candidates: Sequence[Candidate]) -> list[Priced]:
        """One price per candidate."""
        ...

    def on_record(self, candidate: Candidate) -> bool:
        """Whether a kernel's measurement is known without looking its key up in the store."""
        ...

    @property
    def prepare(self) -> Callable[[Iterable[Candidate]], None] | None:
        """Iterator that computes the keys of candidates, possibly in another thread; None if pricing is fast without."""
        ...


class PricerBase:
    """Defaults of `Pricer`: prices need no preparation."""

    prepare: Callable[[Iterable[Candidate]], None] | None = None

    def on_record(self, candidate: Candidate) -> bool:
        """Whether a kernel's measurement is known without looking its key up in the store (`Pricer.on_record`)."""
        return True


@dataclass(frozen=True)
class Value:
    """One value of a plan, with its storage type and origin.

    `origin`: input, state, weight, kernel, or view (an alias of `base`). `carried`: the compute dtype in the graph, if
    the storage dtype differs (model/storage_dtypes.py).
    """

    id: int
    type: Type  # sizes may be expressions in free dimensions
    strides: Strides
    origin: str
    name: str = ""  # name of the input or state; a label for readers of the source
    base: int = -1
    carried: str = ""


@dataclass(frozen=True)
class Step:
    """One kernel call or view of a plan.

    `inputs` maps the template's operands to value ids; `more` are outputs beyond the first.
    """

    template: Template
    call: Call
    inputs: tuple[tuple[str, int], ...]
    output: int
    cost: Priced
    doc: str = ""  # the computed term, as a comment of the emitted source
    more: tuple[int, ...] = ()

    @property
    def outputs(self) -> tuple[int, ...]:
        """Value ids of all outputs."""
        return (self.output, *self.more)

    @property
    def is_view(self) -> bool:
        """Whether the step only creates an alias."""
        return self.template.family == "view"


@dataclass(frozen=True, repr=False)
class Plan:
    """An executable plan of a graph: a list of steps, in order, over values.

    `weights` maps each weight value to the expression over params and constants evaluated at load. `outputs` and
    `updates` are value ids, in the graph's order. `cost` is the sum of the steps' prices in µs. The shapes, strides and
    attributes of a plan with free `sizes` are expressions in these sizes; the plan runs at every size."""

    graph: Graph
    values: tuple[Value, ...]
    steps: tuple[Step, ...]
    weights: Mapping[int, Tensor]
    outputs: tuple[int, ...]
    updates: Mapping[str, int]
    cost: float
    lower_bound: float
    stats: Mapping[str, Any] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)  # free sizes -> value when the plan was chosen
    priced: Mapping[str, int] = field(default_factory=dict)  # free sizes -> value when it was priced, if another

    @property
    def kernels(self) -> int:
        """Number of kernel launches (views do not count)."""
        return sum(not s.is_view for s in self.steps)

    def __repr__(self) -> str:
        return f"Plan of {self.graph.name}: {self.kernels} kernels, {self.cost:.1f} µs, lower bound {self.lower_bound:.1f} µs"

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{', '.join(f'%{v}' for v in s.outputs)}</td><td>{escape(s.template.name)}({', '.join(f'{o}=%{i}' for o, i in s.inputs)})</td>"
            f"<td>{escape(str(self.values[s.output].type))}</td>"
            f"<td>{'view' if s.is_view else f'{s.cost.us:.2f} µs, {escape(s.cost.source)}'}</td></tr>"
            for s in self.steps
        )
        head = "<tr><th>value</th><th>kernel</th><th>type</th><th>cost</th></tr>"
        return f"<b>{escape(repr(self))}</b><table>{head}{rows}</table>"
