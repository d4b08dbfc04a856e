"""Searches for a size-polymorphic program: optimizes the graph at one choice of sizes, keeps what holds at all sizes,
and verifies the program at other sizes.

A graph with free dimensions is saturated (rewritten by rules) at generic sizes: numbers (`egraph/saturate/lift.py`)
chosen such that every number in the e-graph can be converted back to an expression in the dimensions. E-nodes and
kernels that hold only at the generic sizes are removed before extraction. The rest is priced at the sizes that the
caller names, and the chosen plan is lifted to free sizes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

from ...backends.generate.any_size import SizedKernel
from ...backends.generate.free_terms import SizedCall
from ...backends.registry import backend, on_gpu
from ...egraph.evaluate.interpret import expand_all
from ...egraph.ir.graph import Graph
from ...egraph.ops.ops import Type
from ...egraph.saturate.lift import Lifted, Numbers, generic_sizes, lifted
from ...egraph.simplify.masks import canonical_masks
from ...egraph.simplify.simplify import simplify
from ...egraph.simplify.wide_numbers import numbers_kept_wide
from ...egraph.simplify.widen import widen
from ...egraph.view.view import EGraphView
from ...errors import NoPlanError
from ...extract.candidates.hypergraph import Hypergraph
from ...extract.model.backend import Backend
from ...extract.model.gc_pause import gc_paused
from ...extract.model.kernel import Call, Candidate, Strides, Template, Vertex, contiguous
from ...extract.model.plan import Plan
from ...extract.model.sizes import bound_call, holds_at_all_sizes, lifted_call
from ...extract.model.storage_dtypes import narrow_types
from ...extract.search.plan import plan_of
from ...extract.search.search import Choice
from .probe_sizes import general_sizes, probe_sizes
from .size_ranges import Sizes, range_text, ranges, within
from .verify_sizes import SizeVerifier


class NoFormError(NoPlanError):
    """Raised for a plan with kernels that are correct at the generic sizes only (primes that stand for free sizes).

    `kept`: the hypergraph's candidates without these kernels.
    """

    def __init__(self, message: str, kept: list[Candidate]) -> None:
        super().__init__(message)
        self.kept = kept


@dataclass
class Symbolic:
    """State of a size-polymorphic search: the graph with free dimensions, the generic sizes at which it is saturated,
    and the conversion of e-nodes and kernels back to free sizes.

    `searched`: sizes that the caller names, at which plans are priced. `generic`: primes, one per free dimension, so
    that a number tells which dimensions it comes from; `numbers` maps such numbers to expressions. `probes`: sizes at
    which a kernel for every size is checked.
    """

    graph: Graph  # the original, with narrowed ranges
    searched: Sizes
    generic: Sizes
    work: Graph  # simplified and widened, at the generic sizes
    numbers: Numbers
    probes: list[Sizes]
    verifier: SizeVerifier  # of programs at other sizes
    backends: Sequence[Backend] = ()
    lost: dict[str, int] = field(default_factory=dict)  # e-nodes that do not lift: count by op
    refused: dict[str, int] = field(default_factory=dict)  # kernels that do not lift: count by name
    failed_kernels: list[str] = field(
        default_factory=list
    )  # kernels for every size that failed in a program, with the error
    _calls: dict[tuple[int, int], SizedCall | None] = field(default_factory=dict)
    _free: dict[int, SizedCall] = field(default_factory=dict)  # by id of the call at the searched sizes
    _lifted: dict[int, Lifted] = field(default_factory=dict)
    _keyed: list[Any] = field(default_factory=list)  # keeps objects alive whose ids are keys

    @staticmethod
    def of(graph: Graph, searched: Mapping[str, int], *, exact: bool, backends: Sequence[Backend] = ()) -> Symbolic:
        """State of a size-polymorphic search at its start: the graph simplified, with generic sizes chosen.

        `searched`: sizes that the caller names, at which plans are priced. `exact`: no rewrite may change a bit of the
        result (no widening). `backends`: those of the search; on a GPU the choice of generic sizes differs. Raises
        ShapeError if no generic sizes satisfy the graph's constraints.
        """
        searched = {name: searched[name] for name in graph.free_dims}
        graph = within(graph, searched)
        work = simplify(graph, exact=exact)
        work = work if exact else simplify(widen(work, in_place=not on_gpu(backends), rounds=on_gpu(backends)))
        generic = generic_sizes(work, searched, below=on_gpu(backends))
        bound = work.bind(generic)
        work_there = (
            bound.with_roots(numbers_kept_wide(expand_all(bound.roots)))
            if exact
            else canonical_masks(bound, steady=True)
        )
        numbers, verifier = Numbers(work, generic), SizeVerifier(graph, searched, on_gpu(backends))
        probes = list(probe_sizes(graph, generic))
        return Symbolic(graph, searched, generic, work_there, numbers, probes, verifier, backends)

    @property
    def on_gpu(self) -> bool:
        """Whether the program runs on a GPU.

        Kernels are then priced at the generic sizes, at which they have the same masks as a kernel for every size.
        """
        return on_gpu(self.backends)

    @property
    def priced(self) -> Sizes:
        """Sizes at which kernels are priced."""
        return self.generic if self.on_gpu else self.searched

    def narrow(self, view: EGraphView) -> Sequence[Type]:
        """Types (shape, storage dtype) of the e-classes of a lifted e-graph on a GPU; empty on a CPU, which stores
        every value in its e-graph dtype."""
        return narrow_types(view) if self.on_gpu else ()

    # ------------------------------------------------------------ lifting
    def view(self, view: EGraphView) -> EGraphView:
        """The view at generic sizes, without e-nodes that cannot be expressed in free sizes."""
        made = lifted(view, self.numbers)
        for op, count in made.lost.items():
            self.lost[op] = self.lost.get(op, 0) + count
        self._lifted[id(made.generic)] = made
        return made.generic

    def hypergraph(self, found: Hypergraph) -> Hypergraph:
        """The hypergraph `found`, which was matched at generic sizes, reduced to the candidates whose kernels hold at
        all sizes.

        Their calls are converted from the generic sizes to the searched sizes.
        """
        with gc_paused():
            lifted = [(c, self._lifted_call(c.template, c.call)) for c in found.candidates]
            kept = [replace(c, template=m.template, call=m.call) for c, m in lifted if m is not None]
        return replace(found, candidates=kept)

    def _lifted_call(self, template: Template, call: Call) -> SizedCall | None:
        key = id(template), id(call)
        if key not in self._calls:
            self._keyed.append((template, call))
            found = self._calls[key] = self.lift(template, call)
            if found is None:
                self.refused[template.name] = self.refused.get(template.name, 0) + 1
            else:
                self._free[id(found.call)] = found
        return self._calls[key]

    def lift(self, template: Template, call: Call) -> SizedCall | None:
        """Kernel and call at the searched sizes and in free sizes, derived from the kernel `template` and its `call` at
        generic sizes.

        None if the kernel does not hold at all sizes.
        """
        if template.roots:  # generated
            made: SizedCall | None = backend(template.backend).any_size(
                template, call, self.numbers, self.searched, self._others, self.backends
            )
            return made
        free = lifted_call(template, call, self.numbers)
        if free is None or not holds_at_all_sizes(template, free, self.probes):
            return None
        there = bound_call(free, self.priced)
        tuned = {name: tuple(map(int, o.type.shape)) for name, o in there.operands.items()}  # type: ignore[arg-type]
        return SizedCall(template, there, template, replace(free, tuned=tuned))

    @cached_property
    def _others(self) -> list[Sizes]:
        """`general_sizes` other than the generic ones, at which kernels in their general form are generated."""
        return general_sizes(self.graph, self.generic)

    # ------------------------------------------------------------ plan in free sizes
    def plan(self, choice: Choice) -> Plan:
        """Convert a choice of kernels to a plan in free sizes. Raises NoFormError if a kernel holds at the generic
        sizes only."""
        found = choice.hypergraph
        self._refuse_without_form(choice)
        made = self._lifted[id(found.view)]
        candidates = list(found.candidates)
        for i in choice.chosen:
            candidates[i] = self._candidate(candidates[i], made)
        vertex = partial(self._vertex, made)
        given = {cls: vertex(Vertex(cls, strides)).strides for cls, strides in found.given.items()}
        free = replace(
            found,
            view=made.symbolic,
            candidates=candidates,
            given=given,
            roots=list(map(vertex, found.roots)),
            types=[self.numbers.type(t) for t in found.types] if found.types else made.symbolic.types,
        )
        plan = plan_of(replace(choice, hypergraph=free), self.graph)
        return replace(plan, sizes=self.searched, priced=self.generic if self.on_gpu else {})

    def _refuse_without_form(self, choice: Choice) -> None:
        """Raises NoFormError if the source of a chosen GPU kernel cannot be generalized to every size."""
        without: dict[int, str] = {}
        for i in choice.chosen:
            candidate, price = choice.hypergraph.candidates[i], choice.prices[i]
            found = self._free.get(id(candidate.call))
            if found is None or not isinstance(found.free_template, SizedKernel):
                continue
            why = found.free_template.forms_of(replace(found.free_call, schedule=dict(price.schedule)))
            if isinstance(why, str):
                without[i] = why
                self.refused[candidate.template.name] = self.refused.get(candidate.template.name, 0) + 1
        if without:
            chosen = {id(choice.hypergraph.candidates[i].template) for i in without}
            kept = [c for c in choice.hypergraph.candidates if id(c.template) not in chosen]
            raise NoFormError(f"kernels without a form for every size: {'; '.join(sorted({*without.values()}))}", kept)

    def without_sized(self, choice: Choice, text: str) -> tuple[str, list[Candidate]]:
        """The kernels that may have made a program of the plan `choice` fail, and the candidates for the next plan:
        (names of these kernels, the candidates of the plan's hypergraph without them).

        They are the size-polymorphic generated GPU kernels of the plan whose functions the error message `text` names;
        all such kernels if it names none.
        """
        chosen: dict[int, tuple[str, bool]] = {}  # id of the template -> its name, whether the text names its source
        for i in choice.chosen:
            candidate, price = choice.hypergraph.candidates[i], choice.prices[i]
            found = self._free.get(id(candidate.call))
            if found is not None and isinstance(found.free_template, SizedKernel):
                call = replace(found.free_call, schedule=dict(price.schedule))
                named = any(name in text for name in found.free_template.source(call))
                chosen[id(candidate.template)] = candidate.template.name, named
        left_out = {t for t, (_, named) in chosen.items() if named} or set(chosen)
        names = sorted({chosen[t][0] for t in left_out})
        self.failed_kernels += [f"{name} ({text[:300]})" for name in names]
        return ", ".join(names), [c for c in choice.hypergraph.candidates if id(c.template) not in left_out]

    def _candidate(self, c: Candidate, made: Lifted) -> Candidate:
        inputs = tuple([(name, self._vertex(made, v)) for name, v in c.inputs])
        more = tuple([self._vertex(made, v) for v in c.more])
        found = self._free[id(c.call)]
        return replace(
            c,
            template=found.free_template,
            output=self._vertex(made, c.output),
            inputs=inputs,
            call=found.free_call,
            more=more,
        )

    def _vertex(self, made: Lifted, vertex: Vertex) -> Vertex:
        row_major = contiguous(made.generic.types[vertex.cls].shape)  # type: ignore[arg-type]
        if vertex.strides == row_major:
            return Vertex(vertex.cls, contiguous(made.symbolic.types[vertex.cls].shape))  # type: ignore[arg-type]
        strides: Strides = self.numbers.shape(vertex.strides)  # type: ignore[assignment]
        return Vertex(vertex.cls, strides)

    # ------------------------------------------------------------ report
    def size_ranges(self) -> dict[str, str]:
        """Range and searched size of each dimension, as `1..2048 (searched at 128)`."""
        return {name: range_text(atom.min, atom.max, self.searched[name]) for name, atom in ranges(self.graph).items()}

    def notes(self) -> list[str]:
        """Sentences for the report about e-nodes and kernels that were left out of the search, because they do not hold
        at every size."""
        found = []
        if self.lost:
            parts = ", ".join(f"{n} {op}" for op, n in sorted(self.lost.items(), key=lambda p: -p[1])[:5])
            found.append(f"e-nodes that hold at one size only were left out: {parts}")
        found += [f"a kernel for every size was left out: {text}" for text in self.failed_kernels]
        found += [f"a plan that does not hold at every size was dropped ({text})" for text in self.verifier.failed]
        return found


__all__ = ["NoFormError", "Symbolic"]
