"""What extraction knows of kernels: templates that backends declare, and candidates bound to places in an e-graph.

A *template* is a kernel's meaning and its code in one row: a pattern of the rule language says what it computes, a code
template says how. A *candidate* is a template matched at an e-class: which values it reads, which it writes, in which
layout. Backends declare templates; nothing here knows any backend. A generated kernel (a fused region lowered through
the kernel IR) enters the same way: as a candidate whose template was made for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from html import escape
from typing import Any, NamedTuple, Protocol

from ..egraph.dims import Expr, concrete
from ..egraph.graph import Graph, Tensor
from ..egraph.ops import Type
from ..egraph.pattern import Attr, Term, parse_guard, parse_terms, variables
from ..errors import UsageError

Strides = tuple[int, ...]  # in elements
MAX_COMBINATIONS = 64  # of operand layouts per match


def contiguous(shape: Sequence[int]) -> Strides:
    """Row-major strides, in elements. An axis of size 1 has the stride it would have in a larger array."""
    found, step = [], 1
    for size in reversed(shape):
        found.append(step)
        step *= size if isinstance(size, Expr) else max(int(size), 1)
    return tuple(reversed(found))


@dataclass(frozen=True)
class Operand:
    """An operand of a kernel as it lies in memory."""

    type: Type
    strides: Strides

    @property
    def dense(self) -> bool:
        """Whether it is row-major without gaps (strides of size-1 axes do not matter)."""
        want = contiguous(self.type.shape)  # type: ignore[arg-type]
        return all(s == w or d == 1 for s, w, d in zip(self.strides, want, self.type.shape))


@dataclass(frozen=True)
class Call:
    """What a code template may look at when it writes a call: operands, output, attributes; and the names in the source.

    Sizes, strides and attributes may be expressions in free sizes. `tuned` gives then the shapes for which weights are packed.
    """

    operands: Mapping[str, Operand]
    output: Operand
    attrs: Mapping[str, Any]
    names: Mapping[str, str] = field(default_factory=dict)  # operand (and "out", "scratch") -> expression in the source
    schedule: Mapping[str, int] = field(default_factory=dict)  # tiles and options of a generated kernel
    more: tuple[Operand, ...] = ()  # outputs beyond the first, "out1", "out2" in the source
    tuned: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # shapes that weights are packed for

    @property
    def outputs(self) -> tuple[Operand, ...]:
        """All outputs, in the order of the template's terms."""
        return (self.output, *self.more)

    def packed_for(self, operand: str) -> tuple[int, ...]:
        """The shape of an operand for which weights are packed: where its sizes are free, that of one choice of them."""
        return self.tuned.get(operand) or concrete(self.operands[operand].type.shape)

    @property
    def places(self) -> dict[str, Operand]:
        """Operands and outputs by the names that code has for them."""
        return {**self.operands, **dict(zip(output_names(len(self.outputs)), self.outputs))}


def output_names(count: int) -> tuple[str, ...]:
    """What code calls a kernel's outputs: out, out1, out2, …"""
    return ("out", *(f"out{n}" for n in range(1, count)))


SEPARATOR = ";"  # between the terms of a pattern, one for each output
Code = str | Callable[[Call], str]


@dataclass(frozen=True, eq=False)
class Template:
    """One kernel of one backend.

    `pattern` (rule language) is its meaning; its tensor variables are the operands. A kernel with several outputs has a term
    for each, separated by semicolons; its code writes into `out`, `out1`, … `code` is the call: a format string
    over operand names, attribute names and `out`, or a function of a `Call` returning the text. Code that mentions
    `{out}` writes into a given buffer; other code is an expression whose value is a fresh array that aliases nothing.
    `prep` maps operands that must be weight-only to an expression over `{w}` (the weight) evaluated once at load, whose
    value the code then receives in the weight's place: a packed or transposed layout.
    `inplace` lists operands whose buffer `out` may reuse, `beside` those of each further output. `dense` lists operands that must be contiguous ("*": all).
    `setup` names imports or helper definitions (keys of the backend's `helpers`) that the source must contain.
    `layout(call)` gives the strides of the output where they are not row-major (such as channels last).
    `scratch(call)` is how many bytes of workspace the code uses for its own intermediates: it gets them as `{scratch}`, an
    array of bytes that holds nothing before the call and is given to others after it.
    `flops(call)` is the arithmetic, where the e-nodes' own count is wrong. `exact`: bitwise equal to the interpreter.
    `source(call)` gives definitions (name -> text) that the call needs, for kernels generated for it. `space(call)` lists
    the schedules worth measuring, the best guess first; `call.schedule` is one of them, or another that `fits(call)` lets
    pass, when code is written. `loss` is what a kernel may lose by rounding operands to fewer digits than they have in memory
    (relative): it is a candidate only where the tolerance allows that. `rate`: how many times as fast its arithmetic is, about, as
    its operands' dtype has it otherwise.
    """

    name: str
    backend: str
    pattern: str
    code: Code
    family: str = "pointwise"
    when: tuple[str, ...] = ()
    prep: Mapping[str, Code] = field(default_factory=dict)
    inplace: tuple[str, ...] = ()
    dense: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()
    applies: Callable[[Call], bool] | None = None  # a last word on shapes, dtypes and layouts
    layout: Callable[[Call], Strides] | None = None
    flops: Callable[[Call], float] | None = None
    scratch: Callable[[Call], int] | None = None
    exact: bool = False
    source: Callable[[Call], Mapping[str, str]] | None = None
    space: Callable[[Call], Sequence[Mapping[str, int]]] | None = None
    fits: Callable[[Call], bool] | None = None
    version: str = "1"
    beside: tuple[tuple[str, ...], ...] = ()
    loss: float = 0.0
    rate: float = 1.0

    @property
    def combinations(self) -> int:
        """Of its operands' layouts, how many are looked at."""
        return MAX_COMBINATIONS

    def reused_by(self, output: int) -> tuple[str, ...]:
        """Operands whose buffer an output, by its number, may reuse."""
        return ((self.inplace, *self.beside)[output : output + 1] or ((),))[0]

    @cached_property
    def terms(self) -> tuple[Term, ...]:
        """The parsed pattern: what each output is."""
        return parse_terms(self.pattern)

    @property
    def term(self) -> Term:
        """What the first output is."""
        return self.terms[0]

    @cached_property
    def guards(self) -> tuple[Attr, ...]:
        """The parsed conditions."""
        return tuple(map(parse_guard, self.when))

    @cached_property
    def operands(self) -> tuple[str, ...]:
        """Tensor variables, in order of first use."""
        return tuple(dict.fromkeys(v for term in self.terms for v in variables(term)))

    @cached_property
    def identity(self) -> str:
        """Hash of name, pattern, guards, declared identity of the code and of weight preparation, and version; shapes are not in it."""
        prep = sorted((k, code_identity(v)) for k, v in self.prep.items())
        text = repr((self.name, self.pattern, self.when, code_identity(self.code), prep, self.version))  # fmt: skip
        return blake2b(text.encode(), digest_size=12).hexdigest()

    def write(self, call: Call) -> str:
        """The call's source text."""
        return _written(self.code, call)

    def write_prep(self, operand: str, weight: str, call: Call) -> str:
        """The expression that prepares one weight operand at load."""
        code = self.prep[operand]
        return code(call) if callable(code) else code.format(w=weight, **{k: repr(v) for k, v in call.attrs.items()})

    def writes_out(self, call: Call) -> bool:
        """Whether the code writes into a given buffer (else it returns a fresh array)."""
        if isinstance(self.code, str):
            return "{out}" in self.code
        outputs = dict.fromkeys(output_names(len(call.outputs)), "__OUT__")
        names = {**{o: o for o in self.operands}, "scratch": "scratch", **outputs}
        return "__OUT__" in self.code(replace(call, names=names))


def identify(code: Callable[[Call], str], identity: str) -> Callable[[Call], str]:
    """`code`, with the text that stands for it in `Template.identity`.

    The text is part of the key of stored measurements. It must differ between functions that write different source for equal
    calls, and must stay when a function or its module is renamed."""
    code.identity = identity  # type: ignore[attr-defined]
    return code


def identified(identity: str) -> Callable[[Callable[[Call], str]], Callable[[Call], str]]:
    """Decorator form of `identify`."""
    return lambda code: identify(code, identity)


def code_identity(code: Code) -> str:
    """The declared text of a code template: a format string stands for itself. UsageError for a function without one."""
    if isinstance(code, str):
        return code
    found = getattr(code, "identity", None)
    if found is None:
        raise UsageError(
            f"the code function {code!r} of a kernel template has no declared identity",
            where="Template.code",
            hint="wrap it in tensor_graphs.extract.kernel.identify(code, 'package.kernel[options]')",
        )
    return str(found)


def _written(code: Code, call: Call) -> str:
    if callable(code):
        return code(call)
    return code.format(**{k: repr(v) for k, v in call.attrs.items()}, **call.names)


class Backend(Protocol):
    """A way to run kernels. Several backends may share one device's memory (NumPy and Torch share "cpu")."""

    name: str
    device: str
    helpers: Mapping[str, str]  # source of imports and small functions that templates name in `setup`

    @property
    def templates(self) -> Sequence[Template]:
        """All kernels of this backend."""
        ...

    def unavailable(self) -> str:
        """Why it cannot be used here; empty when it can."""
        ...


# ---------------------------------------------------------------- candidates and plans
class Vertex(NamedTuple):
    """An e-class lying in memory in one layout."""

    cls: int
    strides: Strides


@dataclass(frozen=True, slots=True)
class Candidate:
    """A template at a place: reads `inputs` (operand -> vertex), makes `output` and, with several, `more`. Weight operands need no vertex of their
    own to be made: they are there from load on. Views (no work, an alias of their one input) have family "view"."""

    template: Template
    output: Vertex
    inputs: tuple[tuple[str, Vertex], ...]
    call: Call
    weights: frozenset[str] = frozenset()  # operands that are weight-only
    more: tuple[Vertex, ...] = ()  # outputs beyond the first

    @property
    def outputs(self) -> tuple[Vertex, ...]:
        """All that it makes."""
        return (self.output, *self.more)

    @property
    def is_view(self) -> bool:
        """Whether it only describes another way to look at its input's memory."""
        return self.template.family == "view"


@dataclass(frozen=True)
class Priced:
    """A candidate's cost in µs: the value used, an interval, and where it comes from; and the schedule it is for."""

    us: float
    low: float
    high: float
    source: str  # measured | predicted | bound
    schedule: tuple[tuple[str, int], ...] = ()


class Measurer(Protocol):
    """Times candidates; what could not be timed is recorded as a failure and priced infinite."""

    def measure(
        self, candidates: Iterable[Candidate], *, worth: Callable[[Candidate], float] | None = None, look: bool = False,
        later: Iterable[tuple[Candidate, bool]] = (), leave: bool = False,
    ) -> Sequence[Candidate]:  # fmt: skip
        """Measure and store. Returns when rows are durable; with `leave`, when little is still under way: those candidates are
        returned, and measured on beside the next call's. The iterable may end early: when the time is up. `worth` gives the
        µs from which on more measuring of a candidate is of no use, less and less while others are measured. With `look`, only
        about how fast each is. `later`: what may be asked for next, and whether with `look`, to be got ready meanwhile."""
        ...

    def unfinished(self, candidate: Candidate) -> bool:
        """Whether a measured candidate has schedules that are still worth measuring."""
        ...

    def further(self, candidate: Candidate) -> bool:
        """Let the search of a candidate that ended with as many schedules as are usual go on; whether there are more."""
        ...


class Pricer(Protocol):
    """Prices candidates from measurements and predictions."""

    def price(self, candidates: Sequence[Candidate]) -> list[Priced]:
        """One price for each candidate."""
        ...


@dataclass(frozen=True)
class Value:
    """Something a plan holds in memory. `origin`: input, state, weight, kernel, or view (an alias of `base`). `carried`: the
    dtype that the graph has for it, where it lies in memory in another (storage.py)."""

    id: int
    type: Type  # sizes may be expressions in free dimensions
    strides: Strides
    origin: str
    name: str = ""  # input's, state's name; what a reader should call it
    base: int = -1
    carried: str = ""


@dataclass(frozen=True)
class Step:
    """One kernel call or view: `inputs` maps the template's operands to value ids; `more` are outputs beyond the first."""

    template: Template
    call: Call
    inputs: tuple[tuple[str, int], ...]
    output: int
    cost: Priced
    doc: str = ""  # the term it computes, for readers of the source
    more: tuple[int, ...] = ()

    @property
    def outputs(self) -> tuple[int, ...]:
        """Ids of all values that it makes."""
        return (self.output, *self.more)

    @property
    def is_view(self) -> bool:
        """Whether it only makes an alias."""
        return self.template.family == "view"


@dataclass(frozen=True, repr=False)
class Plan:
    """A complete way to compute a graph: a flat list of steps over values.

    `weights` gives, per weight value, the expression over params and constants to evaluate at load. `outputs` and
    `updates` are value ids, in the graph's order. `cost` is the sum of the steps' prices in µs. A plan with free `sizes` has
    expressions in them for shapes, strides and attributes, and runs at every size.
    """

    graph: Graph
    values: tuple[Value, ...]
    steps: tuple[Step, ...]
    weights: Mapping[int, Tensor]
    outputs: tuple[int, ...]
    updates: Mapping[str, int]
    cost: float
    lower_bound: float
    stats: Mapping[str, Any] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)  # free sizes, with what each was when the plan was chosen

    @property
    def kernels(self) -> int:
        """Number of kernel launches (views are none)."""
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
