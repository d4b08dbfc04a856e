"""Size-polymorphic programs: search at one choice of sizes, keep what holds at all sizes, verify at others.

A graph with free dimensions is saturated at generic sizes (`egraph/saturate/lift.py`), chosen such that every number in the
e-graph can be converted back to an expression in the dimensions. E-nodes and kernels that hold only at the generic
sizes are removed before extraction. The rest is priced at the sizes that the caller names, and the chosen plan is
lifted to free sizes.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain
from typing import Any

from ..backends.c.any_size import Sized
from ..backends.program.emit_any_size import sources
from ..backends.program.program import Program
from ..backends.registry import backend
from ..egraph.ir.dims import Atom, Dim, Expr, dim
from ..egraph.ir.graph import Graph
from ..egraph.ir.interpret import expand_all
from ..egraph.ir.size_conditions import NO_LIMIT
from ..egraph.saturate.lift import Lifted, Numbers, generic_sizes, is_prime, lifted
from ..egraph.simplify.masks import canonical_masks
from ..egraph.simplify.simplify import simplify
from ..egraph.simplify.widen import widen
from ..egraph.view.view import EGraphView
from ..errors import ShapeError, TensorGraphsError, UsageError
from ..extract.candidates.candidates import Hypergraph
from ..extract.model.gc_pause import no_collection
from ..extract.model.kernel import Call, Candidate, Plan, Strides, Template, Vertex, contiguous
from ..extract.model.sizes import bound_call, holds, lifted_call
from ..extract.model.work import graph_flops
from ..extract.search.plan import plan_of
from ..extract.search.search import Choice
from ..verification.comparison import FACTORS, OutputError, Tolerance
from ..verification.reference import KEPT_BYTES
from ..verification.verify import verify
from .verify_or_retry import run_flat

Sizes = dict[str, int]
PROBES = (2, 63)  # sizes at which the kernels' applicability is probed
ODD = (3, 5, 7, 11, 13, 17, 19, 23)  # sizes at which programs are verified
EVEN = (4, 6, 10, 14, 16, 22, 26)
EXTRA, EXTRA_SECONDS = 10, 1.0  # additional random choices of sizes for verification, within this many seconds
SLACK = 10.0  # allowed error multiple at sizes other than the searched ones
# flops of the model and bytes of a value above which it is verified only slightly above the searched size
LARGE_FLOPS, LARGE_BYTES = 4e9, 1 << 26


def ranges(graph: Graph) -> dict[str, Atom]:
    """The free dimensions by name, sorted."""
    return dict(sorted(graph.free_dims.items()))


def within(graph: Graph, searched: Mapping[str, int]) -> Graph:
    """The graph with its dimensions narrowed to the ranges that its ops allow, others at searched sizes, found by
    bisection.

    Example: a table of 512 positions limits the sequence length to 512. Size 0 is excluded, since kernels need not
    handle empty tensors.
    """

    def means(name: str, size: int) -> bool:
        try:
            graph.bind({**searched, name: size})
        except ShapeError:
            return False
        return True

    fresh: dict[str, Dim] = {}
    for name, atom in ranges(graph).items():
        ends = []
        for end in (max(1, atom.min), atom.max):
            good, bad = searched[name], end
            while not means(name, end) and abs(bad - good) > 1:
                middle = (good + bad) // 2
                good, bad = (middle, bad) if means(name, middle) else (good, middle)
            ends.append(end if means(name, end) else good)
        fresh[name] = dim(name, min=ends[0], max=ends[1])
    return graph.bind(fresh)


def why_fixed(graph: Graph) -> str:
    """Why a graph cannot be compiled for free sizes; "" if it can."""
    for leaf in (*graph.leaves("state"), *graph.leaves("param")):
        if any(isinstance(d, Expr) for d in leaf.shape):
            return f"the {leaf.op} {leaf.attr('name')!r} has free sizes"
    try:
        sources([leaf.shape for leaf in graph.inputs], list(graph.free_dims))
    except UsageError as error:
        return error.message
    return ""


@dataclass
class Symbolic:
    """A graph with free dimensions during a size-polymorphic search."""

    graph: Graph  # the original, with narrowed ranges
    searched: Sizes
    generic: Sizes
    work: Graph  # simplified and widened, at the generic sizes
    numbers: Numbers
    probes: list[Sizes]
    lost: dict[str, int] = field(default_factory=dict)  # e-nodes that do not lift: count by op
    refused: dict[str, int] = field(default_factory=dict)  # kernels that do not lift: count by name
    failed: list[str] = field(default_factory=list)  # sizes at which a plan failed, with the error
    _calls: dict[tuple[int, int], Sized | None] = field(default_factory=dict)
    _free: dict[int, Sized] = field(default_factory=dict)  # by id of the call at the searched sizes
    _lifted: dict[int, Lifted] = field(default_factory=dict)
    _held: list[Any] = field(default_factory=list)  # keeps objects alive whose ids are keys
    _references: dict[tuple[int, ...], dict[int, Any]] = field(default_factory=dict)

    @staticmethod
    def of(graph: Graph, searched: Mapping[str, int], *, exact: bool) -> Symbolic:
        """Prepare a graph. ShapeError if no generic sizes satisfy its constraints."""
        searched = {name: searched[name] for name in graph.free_dims}
        graph = within(graph, searched)
        work = simplify(graph, exact=exact)
        work = work if exact else simplify(widen(work))
        generic = generic_sizes(work, searched)
        bound = work.bind(generic)
        work_there = bound.with_roots(expand_all(bound.roots)) if exact else canonical_masks(bound, steady=True)
        found = Symbolic(graph, searched, generic, work_there, Numbers(work, generic), [])
        found.probes = list(found._probes())
        return found

    # ------------------------------------------------------------ lifting
    def view(self, view: EGraphView) -> EGraphView:
        """The view at generic sizes without e-nodes that do not lift."""
        made = lifted(view, self.numbers)
        for op, count in made.lost.items():
            self.lost[op] = self.lost.get(op, 0) + count
        self._lifted[id(made.generic)] = made
        return made.generic

    def hypergraph(self, found: Hypergraph) -> Hypergraph:
        """The candidates of a lifted view that hold at all sizes, with their calls at the searched sizes."""
        with no_collection():
            lifted = [(c, self._made(c.template, c.call)) for c in found.candidates]
            kept = [replace(c, template=m.template, call=m.call) for c, m in lifted if m is not None]
        return replace(found, candidates=kept)

    def _made(self, template: Template, call: Call) -> Sized | None:
        key = id(template), id(call)
        if key not in self._calls:
            self._held.append((template, call))
            found = self._calls[key] = self.lift(template, call)
            if found is None:
                self.refused[template.name] = self.refused.get(template.name, 0) + 1
            else:
                self._free[id(found.call)] = found
        return self._calls[key]

    def lift(self, template: Template, call: Call) -> Sized | None:
        """Lift a kernel and its call from the generic sizes: to the searched sizes and to free sizes. None if it does
        not hold at all sizes.
        """
        if template.roots:  # generated
            made: Sized | None = backend(template.backend).any_size(
                template, call, self.numbers, self.searched, self._others
            )
            return made
        free = lifted_call(template, call, self.numbers)
        if free is None or not holds(template, free, self.probes):
            return None
        there = bound_call(free, self.searched)
        tuned = {name: tuple(map(int, o.type.shape)) for name, o in there.operands.items()}  # type: ignore[arg-type]
        return Sized(template, there, template, replace(free, tuned=tuned))

    def _probes(self) -> Iterator[Sizes]:
        """Sizes across the ranges at which kernels are checked. 1 is excluded: kernels have special cases there, which
        must not be required.
        """
        atoms = ranges(self.graph)

        def inside(name: str, n: int) -> int:
            return min(max(n, atoms[name].min, 2), max(atoms[name].max, 2))

        yield self.generic
        for n in PROBES:
            yield {name: inside(name, n + i) for i, name in enumerate(atoms)}
        for name in atoms:
            if atoms[name].max < NO_LIMIT:
                yield {**self.generic, name: inside(name, atoms[name].max)}

    @cached_property
    def _others(self) -> list[Sizes]:
        """One odd and one even choice of sizes, other than the generic one, at which loops are rarely unrolled or
        blocked.

        Kernels generated there have the general form. Empty if a range has no other sizes.
        """
        fits = {
            name: sorted(set(range(max(2, a.min), min(a.max, 1 << 10) + 1)) - {self.generic[name]}, key=_plainness)
            for name, a in ranges(self.graph).items()
        }
        found: list[Sizes] = []
        if all(len(sizes) > 1 for sizes in fits.values()):
            for parity in (1, 0):
                some = {name: [s for s in sizes if s % 2 == parity] or sizes for name, sizes in fits.items()}
                found.append({name: sizes[i % len(sizes)] for i, (name, sizes) in enumerate(some.items())})
        return found

    # ------------------------------------------------------------ plan in free sizes
    def plan(self, choice: Choice) -> Plan:
        """The choice as a plan in free sizes."""
        found = choice.hypergraph
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
            types=made.symbolic.types,
        )
        return replace(plan_of(replace(choice, hypergraph=free), self.graph), sizes=self.searched)

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

    # ------------------------------------------------------------ verification at other sizes
    def others(self) -> list[Sizes]:
        """Sizes at which a program is verified besides the searched ones: minimal, small odd, small even, larger; only
        valid ones.
        """
        atoms = ranges(self.graph)
        found: list[Sizes] = []
        for wanted in (self._least(atoms), self._small(atoms, ODD), self._small(atoms, EVEN), self._larger(atoms)):
            sizes = next((s for s in wanted if self._means(s)), None)
            if sizes is not None and sizes not in found and sizes != self.searched:
                found.append(sizes)
        return found

    def _means(self, sizes: Sizes) -> bool:
        try:
            self.graph.bind(sizes)
        except ShapeError:
            return False
        return True

    def _least(self, atoms: Mapping[str, Atom]) -> Iterator[Sizes]:
        low = {name: atom.min for name, atom in atoms.items()}
        while any(low[n] < self.searched[n] for n in low):
            yield dict(low)
            low = {n: min(2 * s, self.searched[n]) for n, s in low.items()}

    def _small(self, atoms: Mapping[str, Atom], among: Sequence[int]) -> Iterator[Sizes]:
        for start in range(len(among)):
            yield {n: min(max(among[(start + i) % len(among)], a.min), a.max) for i, (n, a) in enumerate(atoms.items())}
        yield {n: max(s - 1, atoms[n].min) for n, s in self.searched.items()}

    def _larger(self, atoms: Mapping[str, Atom]) -> Iterator[Sizes]:
        grown: list[Callable[[int], int]] = [lambda s: 2 * s + 1, lambda s: s + s // 2 + 1, lambda s: s + 1]
        for grow in grown:
            sizes = {n: min(grow(s), atoms[n].max) for n, s in self.searched.items()}
            if self._means(sizes) and self._light(sizes):
                yield sizes
        for name, size in self.searched.items():  # large models: one dimension plus one, the others minimal
            yield {n: min(size + 1, a.max) if n == name else min(a.min, self.searched[n]) for n, a in atoms.items()}

    def _drawn(self, seed: int) -> Iterator[Sizes]:
        """Additional random sizes, mostly small; only valid ones with little computation."""
        rng, atoms = random.Random(seed), ranges(self.graph)
        for k in range(EXTRA):
            most = 16 << k
            sizes = {n: rng.randint(a.min, max(a.min, min(a.max, most))) for n, a in atoms.items()}
            if self._means(sizes) and self._light(sizes, LARGE_FLOPS / 8, LARGE_BYTES / 8):
                yield sizes

    def _light(self, sizes: Sizes, flops: float = LARGE_FLOPS, size: float = LARGE_BYTES) -> bool:
        """Whether the graph at these sizes stays below the given flops and bytes per value."""
        there = self.graph.bind(sizes)
        return graph_flops(list(there.roots)) <= flops and all(n.type.nbytes <= size for n in there.nodes() if n.args)

    def wrong(
        self, program: Program, tolerance: Tolerance, seed: int, enough: Callable[[], bool] = lambda: False,
        poll: Callable[[], object] = lambda: None,
    ) -> str:  # fmt: skip
        """Verify a program at other sizes; return the problem as text, "" if there is none.

        `enough()`: skip the optional sizes; `poll`: see `verify`.
        """
        start = time.monotonic()
        for number, sizes in enumerate(chain(needed := self.others(), self._drawn(seed))):
            if number >= len(needed) and (enough() or time.monotonic() - start > EXTRA_SECONDS):
                break
            there = self.graph.bind(sizes)
            small = number < len(needed) and sum(r.type.nbytes for r in there.roots) <= KEPT_BYTES
            known = self._references.setdefault(tuple(sizes.values()), {}) if small else {}
            try:
                verdict = verify(
                    there, partial(run_flat, program), tolerance=tolerance, seed=seed, references=known, seeds=1,
                    poll=poll,
                )  # fmt: skip
            except (TensorGraphsError, ValueError, TypeError, IndexError, RuntimeError) as error:
                return self._noted(sizes, f"{type(error).__name__}: {str(error).splitlines()[0][:200]}")
            if wrong := [o for o in verdict.outputs if not _tolerable(o, tolerance)]:
                return self._noted(sizes, wrong[0].said)
        return ""

    def _noted(self, sizes: Sizes, what: str) -> str:
        at = ", ".join(f"{n}={s}" for n, s in sizes.items())
        self.failed.append(f"at {at}: {what}")
        return self.failed[-1]

    # ------------------------------------------------------------ report
    def spelled(self) -> dict[str, str]:
        """Per dimension: range and searched size, as `1..2048 (searched at 128)`."""
        return {name: range_text(atom.min, atom.max, self.searched[name]) for name, atom in ranges(self.graph).items()}

    def notes(self) -> list[str]:
        """Report sentences about what was removed."""
        found = []
        if self.lost:
            parts = ", ".join(f"{n} {op}" for op, n in sorted(self.lost.items(), key=lambda p: -p[1])[:5])
            found.append(f"e-nodes that hold at one size only were left out: {parts}")
        found += [f"a plan that does not hold at every size was dropped ({text})" for text in self.failed]
        return found


def _tolerable(output: OutputError, tolerance: Tolerance) -> bool:
    """Whether an output is correct at another size than the searched one.

    Uses SLACK: the unoptimized graph's rounding error is a reliable measure only for large outputs, and minimal sizes
    have few elements.
    """
    if output.discrete and tolerance != "exact":
        return not output.miscompiled
    slack = SLACK if tolerance in FACTORS else 1.0
    return output.finite and output.excess <= slack


def _plainness(n: int) -> tuple[bool, bool, int]:
    """Sort key: primes from 11 on and twice such primes first, then other primes, then the rest."""
    half = n if n % 2 else n // 2
    return not is_prime(half), half < 11, n


def range_text(low: int, high: int, searched: int) -> str:
    """A range of sizes as text."""
    return f"{low}..{high if high < NO_LIMIT else ''} (searched at {searched})"


__all__ = ["Symbolic", "range_text", "ranges", "why_fixed"]
