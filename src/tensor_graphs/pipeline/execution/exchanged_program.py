"""Runs a bound GPU program with other kernels in the places of some of its own, without emitting and binding a program.

A search times many such variants of a program. To emit, execute and bind each takes some 0.2 s; the class here takes as
long as it takes to launch a variant's kernels three times. The function `launch` of an emitted program takes the
program's kernels as keyword arguments. A variant calls it with replacements, which select from the arguments of the
kernels in whose places they are, and records the launches as a CUDA graph. It reads and writes the memory of the
program.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from threading import Lock
from typing import Any

from ...backends.generate.kernel_text import kernel_text, module_of, out_argument
from ...backends.program.launch.launching import plan_for_launching
from ...backends.program.program import Program
from ...extract.model.kernel import Call, Template, output_names
from ...extract.model.plan import Plan, Step

COPY = "carried"  # function that copies the rows that an output keeps, unless they are where the output is


@dataclass(frozen=True)
class Site:
    """How a program calls a kernel: the function's name, and operand or output -> position among the arguments."""

    name: str
    places: Mapping[str, int]


def site_of(template: Template, call: Call) -> Site | None:
    """How a program calls the generated kernel `template` in the schedule of `call`; None if by other statements than
    one launch (and copies of rows that an output updates, which programs do not make where it is a state), or if an
    operand or output is no argument by itself."""
    if template.source is None or template.space is None:
        return None
    outputs = output_names(len(call.outputs))
    names = {**{o: o for o in template.operands}, **{o: out_argument(o) for o in outputs}}
    text = template.write(replace(call, names={**names, "scratch": "scratch"}))
    every = [s.value for s in ast.parse(text).body if isinstance(s, ast.Expr) and isinstance(s.value, ast.Call)]
    launched = [made for made in every if not (isinstance(made.func, ast.Name) and made.func.id == COPY)]
    if len(launched) != 1:
        return None
    (made,) = launched
    function = made.func.value if isinstance(made.func, ast.Subscript) else made.func
    known = {text: name for name, text in names.items()}
    places = {known[a.id]: n for n, a in enumerate(made.args) if isinstance(a, ast.Name) and a.id in known}
    return Site(function.id, places) if isinstance(function, ast.Name) and len(places) == len(names) else None


def order_of(old: Step, new: Step, site: Site) -> tuple[int, ...] | None:
    """Positions of a kernel's operands and outputs, in the order of `kernel_text`, among the arguments of the kernel of
    the step `old`, which the program calls at `site`. None if the kernel of `new` cannot take its memory."""
    operand = {value: o for o, value in reversed(old.inputs)}
    ours, theirs, outputs = dict(new.inputs), dict(old.inputs), output_names(len(old.call.outputs))
    if len(new.call.outputs) != len(outputs) or not {*ours.values()} <= operand.keys():
        return None
    prepared = {operand[ours[o]]: _prepared(new, o) for o in new.template.prep}
    if prepared != {o: _prepared(old, o) for o in old.template.prep}:
        return None
    for n in range(len(outputs)):  # outputs may share the memory of these operands
        allowed = {ours[o] for o in new.template.reused_by(n) if o in ours}
        if not {theirs[o] for o in old.template.reused_by(n) if o in theirs} <= allowed:
            return None
    return tuple(site.places[o] for o in (*(operand[ours[o]] for o in new.template.operands), *outputs))


def _prepared(step: Step, operand: str) -> str:
    """Text that prepares a weight for a step's kernel."""
    return step.template.write_prep(operand, "w", replace(step.call, names={operand: "w"}))


class Replacement:
    """A generated kernel that is called with the arguments of another one: by itself, or indexed by a grid."""

    def __init__(self, template: Template, call: Call, device: Any) -> None:
        import torch

        text = kernel_text(template, call)
        self.run = module_of(text).run
        self.scratch = torch.zeros(max(1, text.scratch), dtype=torch.uint8, device=device)

    def at(self, order: Sequence[int]) -> _Placed:
        """The kernel for arguments of which it takes those at the positions `order`."""
        return _Placed(self, order)


@dataclass(frozen=True)
class _Placed:
    kernel: Replacement
    order: Sequence[int]

    def __getitem__(self, grid: Any) -> _Placed:
        return self

    def __call__(self, *given: Any, **options: Any) -> None:
        self.kernel.run(*[given[k] for k in self.order], self.kernel.scratch)


class Exchanges:
    """Makes variants of a program that is bound and has been called: other kernels compute the same values.

    `steps`: those of the program, with its launch overlap; `sites`: how it calls each.
    """

    def __init__(self, program: Program) -> None:
        assert program.plan is not None
        self.program, self.plan = program, program.plan
        self.calls: Any = program._run
        self.steps = plan_for_launching(self.plan).steps
        self.sites = [None if s.is_view else site_of(s.template, s.call) for s in self.steps]
        self.texts = [_text(s) for s in self.steps]
        self.kernels: dict[Any, Replacement] = {}

    @staticmethod
    def of(program: Any) -> Exchanges | None:
        """The exchanges of a program; None unless it runs on a GPU and records its launches."""
        calls = getattr(program, "_run", None)
        usable = isinstance(program, Program) and hasattr(calls, "captured_results") and getattr(calls, "gpu", False)
        return Exchanges(program) if usable else None

    def program_of(self, changed: Mapping[int, Step]) -> ExchangedProgram | None:
        """The program with other steps at these indices of its plan's; None if their kernels cannot be called with the
        arguments of those in whose places they are."""
        steps = tuple(changed.get(n, s) for n, s in enumerate(self.plan.steps))
        plan = replace(self.plan, steps=steps)
        wanted: dict[str, tuple[Any, tuple[int, ...]]] = {}  # name -> (key of the text, order of arguments)
        kernels: dict[str, _Placed] = {}
        made = plan_for_launching(plan).steps
        for old, text, site, new in zip(self.steps, self.texts, self.sites, made, strict=True):
            found = _text(new)
            if found == text and site is None:
                continue
            order = None if site is None else () if found == text else order_of(old, new, site)
            if site is None or order is None or new.template.space is None:
                return None
            if wanted.setdefault(site.name, (found, order)) != (found, order):
                return None
            if found != text and site.name not in kernels:
                if found not in self.kernels:
                    self.kernels[found] = Replacement(new.template, new.call, self.calls.device)
                kernels[site.name] = self.kernels[found].at(order)
        return ExchangedProgram(self, plan, changed, kernels)


def _text(step: Step) -> Any:
    """Key of a step's kernel: equal for equal texts."""
    call = step.call
    operands = tuple((o.type, o.strides) for o in call.buffers.values())
    return step.template.identity, operands, repr(call.attrs), frozenset(call.schedule.items()), call.constant


class ExchangedProgram:
    """A variant of a program (`Exchanges`), called like it. The first call launches kernel by kernel, as do calls on
    poisoned memory; others replay a CUDA graph that has fixed inputs: those of the call that records it."""

    def __init__(
        self, exchanges: Exchanges, plan: Plan, changed: Mapping[int, Step], kernels: Mapping[str, _Placed]
    ) -> None:  # fmt: skip
        self.exchanges, self.plan, self.changed, self.kernels = exchanges, plan, changed, kernels
        self.own, self.calls = exchanges.program, exchanges.calls
        self.called = self.poisoning = False
        self.recorded: Any = None
        self.results: Sequence[Any] = ()
        self.used: Sequence[Any] = ()  # tensors that the graph reads and writes

    def __getattr__(self, name: str) -> Any:
        return getattr(self.own, name)  # states, tensors, manifest and others

    def launching_as(self, other: Program) -> ExchangedProgram:
        """Returns itself: its launch mode is that of a CUDA graph."""
        return self

    def missing_bytes(self) -> int:
        """0: the memory is that of the program."""
        return 0

    def unbind(self) -> None:
        """Release the recorded graph."""
        self.recorded, self.results, self.used = None, (), ()

    @contextmanager
    def poisoned(self) -> Iterator[None]:
        """Context manager in which the next call finds NaN wherever it must write before it reads
        (`BoundProgram.poisoned`)."""
        with self.own.poisoned():
            self.poisoning = True
            try:
                yield
            finally:
                self.poisoning = False

    def flat_near(self, *given: Any) -> Sequence[Any]:
        """Run the program on inputs on its device; returns its outputs."""
        calls = self.calls
        with calls.lock:
            if self.recorded is None:
                tensors = [*(x if calls.fits(x) else calls.dense(x) for x in given), *(make() for make in calls.fresh)]
                if not self.called or self.poisoning:
                    self.called = True
                    return self._launched(tensors)
                self._record(tensors)
            self.recorded.replay()
            return self.results

    def _launched(self, tensors: Sequence[Any]) -> Sequence[Any]:
        """The results of launching kernel by kernel."""
        with self._exchanged():
            found: Sequence[Any] = self.calls.launched(tensors)
        return tuple(found)

    def _record(self, tensors: Sequence[Any]) -> None:
        """Record the launches on the inputs and the memory for results `tensors`, without running them."""
        import torch

        alone = vars(torch.cuda).setdefault("_programs_recording", Lock())  # as in `Calls.captured`
        graph = torch.cuda.CUDAGraph()
        with self._exchanged(), alone:
            self.results = tuple(self.calls.captured_results(graph, tensors, True))
        self.recorded, self.used = graph, tensors

    @contextmanager
    def _exchanged(self) -> Iterator[None]:
        """Context manager in which the program's function `launch` calls the replacements."""
        own = self.calls.launch
        self.calls.launch = partial(own, **self.kernels)
        try:
            yield
        finally:
            self.calls.launch = own


__all__ = ["ExchangedProgram", "Exchanges", "Replacement", "Site", "order_of", "site_of"]
