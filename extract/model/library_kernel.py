"""Defines library kernels: templates (kernels' patterns and code) whose code is declared as text or as a function, with
a declared identity."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from typing import Any

from ...egraph.ir.tensor import Tensor
from ...egraph.patterns.pattern import Term, variables
from ...egraph.patterns.pattern_attrs import Attr
from ...egraph.patterns.pattern_parser import parse_guard, parse_terms
from ...errors import Unpicklable, UsageError
from .kernel import (
    MAX_LAYOUT_COMBINATIONS,
    Call,
    Check,
    Code,
    Layout,
    Moves,
    Schedules,
    Sources,
    Template,
    output_names,
)

OUTPUT_SEPARATOR = ";"  # between the terms of a pattern, one term per output


@dataclass(frozen=True, eq=False)
class KernelBase(Unpicklable):
    """Data and derived members that all kernel templates have.

    `pattern` (rule language) is the kernel's semantics; its tensor variables are the operands. `when` lists guard
    conditions in the same language, which must hold for a match. A kernel with several outputs has one term per output,
    separated by semicolons; its code writes into `out`, `out1`, … `family` groups kernels in reports and cost models;
    views (aliases of their one operand) have the family "view". `prep` maps operands that must be weight-only to an
    expression over `{w}` (the weight) evaluated once at load; the code then receives its value (a packed or transposed
    layout) instead of the weight. `inplace` lists operands whose buffer `out` may reuse, `beside` those of each further
    output. `dense` lists operands that must be contiguous ("*": all), `reads_last` those that must be channels-last
    images: a copy of a row-major value to that layout is a candidate. `setup` names imports or helper definitions (keys
    of the backend's `helpers`) that the source must contain. `exact`: bitwise equal to the interpreter. `version` is
    part of the identity under which measurements are stored: another one makes the kernel unmeasured. `loss` is the
    relative error from rounding operands to fewer digits than they have in memory: the kernel is a candidate only where
    the tolerance allows that. `rate`: approximate ratio of its arithmetic throughput to the usual throughput of its
    operands' dtype. `searches`: its first call tries the library's algorithms, which takes up to a second.
    """

    kept_by = "keep what the kernel belongs to: program.save(folder) for a plan, explorer.to_json() for an e-graph"

    name: str
    backend: str
    pattern: str
    family: str = field(default="pointwise", kw_only=True)
    when: tuple[str, ...] = field(default=(), kw_only=True)
    prep: Mapping[str, Code] = field(default_factory=dict, kw_only=True)
    inplace: tuple[str, ...] = field(default=(), kw_only=True)
    beside: tuple[tuple[str, ...], ...] = field(default=(), kw_only=True)
    dense: tuple[str, ...] = field(default=(), kw_only=True)
    reads_last: tuple[str, ...] = field(default=(), kw_only=True)
    setup: tuple[str, ...] = field(default=(), kw_only=True)
    exact: bool = field(default=False, kw_only=True)
    version: str = field(default="1", kw_only=True)
    loss: float = field(default=0.0, kw_only=True)
    rate: float = field(default=1.0, kw_only=True)
    searches: bool = field(default=False, kw_only=True)

    @property
    def lifted_from(self) -> tuple[Template, Call] | None:
        """None: only generated kernels are made from a kernel at generic sizes (`Template.lifted_from`)."""
        return None

    @property
    def is_packed_product(self) -> bool:
        """False: library kernels read weights as they are (`Template.is_packed_product`)."""
        return False

    def measured_as(self, call: Call) -> tuple[Template, Call]:
        """The kernel and call under which the cost store has the time of a call at concrete sizes.

        By default they are this kernel and `call` themselves.
        """
        return self, call  # type: ignore[return-value]  # every kernel is a Template

    def bounds_of(self, call: Call) -> Sequence[Mapping[str, tuple[int, int]]]:
        """Ranges of sizes for which a call has separate sources (`Template.bounds_of`): none, since a library kernel
        has one source for all sizes."""
        return ()

    def conditions_of(self, call: Call) -> Sequence[str]:
        """Conditions on free sizes under which a call is valid (`Template.conditions_of`): none by default."""
        return ()

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
        """Declared identity of the code (text that stands for it in keys of measurements), a part of `identity`."""
        raise NotImplementedError

    @cached_property
    def identity(self) -> str:
        """Digest (hexadecimal) of name, pattern, guards, version, and the declared identities of the code and of weight
        preparation."""
        prep = sorted((k, code_identity(v)) for k, v in self.prep.items())
        text = repr((self.name, self.pattern, self.when, self.code_identity, prep, self.version))
        return blake2b(text.encode(), digest_size=12).hexdigest()

    def write_prep(self, operand: str, weight: str, call: Call) -> str:
        """Source of the expression that converts the weight of one operand at load (`Template.write_prep`)."""
        code = self.prep[operand]
        return code(call) if callable(code) else code.format(w=weight, **{k: repr(v) for k, v in call.attrs.items()})


@dataclass(frozen=True, eq=False)
class LibraryKernel(KernelBase):
    """A kernel whose code a backend declares.

    `code` is the call: a format string over operand names, attribute names and `out`, or a function of a `Call` that
    returns the text. Code that mentions `{out}` stores its result in the buffer of that name, which the program
    allocates; other code is an expression whose value is a new array without aliases, or with several outputs a tuple
    of such arrays. `applies(call)` is a final check of shapes, dtypes and layouts. `layout(call)` returns the strides
    of the output where they are not row-major (such as channels-last). `flops(call)` is the arithmetic, where the
    e-nodes' own count is wrong. `scratch(call)` returns the size in bytes of the workspace: the code gets it as
    `{scratch}`, an uninitialized byte array that other kernels reuse after the call. `source(call)` returns definitions
    (name -> text) that the call needs. `space(call)` lists the candidate schedules (tuning parameters), the best guess
    first; `call.schedule` is one of them, or another one for which `fits(call)` (legality) holds. `moves(schedule)`
    gives the neighbours of a schedule, legal or not: (parameter, whether it grows (1) or shrinks (-1), schedule).
    `warp_specialized(schedule)`: whether warps of the kernel have different roles. `combinations`: most combinations of
    its operands' layouts that are considered; in the first ones all have their first layout, then all their second, …
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
    combinations: int = field(default=MAX_LAYOUT_COMBINATIONS, kw_only=True)

    @property
    def roots(self) -> Sequence[Tensor]:
        """The terms that a generated kernel computes (`Template.roots`): none, as a library kernel is found by its
        name."""
        return ()

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
        """Whether the code stores its result in an output buffer that the program allocates (`{out}`), instead of
        returning a new array (`Template.writes_out`)."""
        if isinstance(self.code, str):
            return "{out}" in self.code
        return mentions_out(self.code, self.operands, call)

    def alike(self, call: Call) -> Hashable | None:
        """Key of kernels that likely share the best schedule; unique to the call, since library kernels share no
        schedules."""
        return self.identity, id(call)

    def job_fields(self) -> dict[str, Any]:
        """JSON fields of a tuning job (a request to measure in another process) that regenerate the kernel: none, as a
        library kernel is found by its name."""
        return {}


def mentions_out(code: Callable[[Call], str], operands: Iterable[str], call: Call) -> bool:
    """Whether the source that the function `code` returns for a call names an output buffer (`out`, ...), so that the
    kernel stores its results there instead of returning new arrays.

    `operands`: names of the kernel's operands.
    """
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
    """Decorator that attaches the text `identity`, which represents the decorated function in stored keys, to it
    (`identify`)."""
    return lambda code: identify(code, identity)


def code_identity(code: Code) -> str:
    """The declared identity of a kernel's code: a format string itself; of a function the text attached by `identify`.

    Raises UsageError for a function without one.
    """
    if isinstance(code, str):
        return code
    found = getattr(code, "identity", None)
    if found is None:
        raise UsageError(
            f"the code function {code!r} of a kernel template has no declared identity",
            where="LibraryKernel.code",
            hint="wrap it in tensor_graphs.extract.model.library_kernel.identify(code, 'package.kernel[options]')",
        )
    return str(found)


def _written(code: Code, call: Call) -> str:
    if callable(code):
        return code(call)
    return code.format(**{k: repr(v) for k, v in call.attrs.items()}, **call.names)
