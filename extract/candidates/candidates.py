"""Makes the kernel hypergraph of an e-graph view: all candidate kernels of all backends, for each value and layout
(strides in memory).

Vertices are (e-class, layout) pairs; candidates are hyperedges. Values that depend on weights alone are computed once
at load time and are available row-major at no cost. Views (reshape, permute, slice, …) of existing values cost nothing
either: they only add layouts, at most `MAX_LAYOUTS` per class. Intermediate values of a fused kernel are not vertices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import product
from typing import Any, TypeVar

from ...egraph.ops.ops import Type
from ...egraph.patterns.pattern import Term, Var, attr_variables, variables
from ...egraph.view.match import Matcher
from ...egraph.view.view import EGraphView
from ...errors import RuleError
from ..fusion.groups import GROUPS_CACHE_ATTRIBUTE
from ..fusion.maximal import without_rewrites_in_large_parts
from ..model.backend import Backend
from ..model.clock import Halted
from ..model.gc_pause import gc_paused
from ..model.kernel import Call, Candidate, Strides, Template, Vertex, contiguous
from .bindings import KernelMatch, MatchBinder
from .carried import CarriedKernels
from .hypergraph import Hypergraph, ViewStrides, in_value_order, reachable
from .layouts import MAX_LAYOUTS, ClassLayouts, canonical_strides

T = TypeVar("T")
# size of the first batch of matches that backends prepare, and of the largest (batches double)
FIRST_BATCH_MATCHES, MAX_BATCH_MATCHES = 64, 2000


def candidate_hypergraph(
    view: EGraphView, backends: Sequence[Backend], view_strides: ViewStrides, types: Sequence[Type] | None = None,
    stop: Callable[[], bool] = lambda: False, enough: Callable[[bool], bool] = lambda bound: False,
    carried: CarriedKernels | None = None,
) -> Hypergraph:  # fmt: skip
    """Hypergraph of all kernels of the given backends that match the e-graph `view` and may be part of a plan for some
    root.

    `view_strides`: function that returns the strides of a view op (reshape, slice, ...) of an operand; None if it needs
    a copy. `types`: storage types of the e-classes (model/storage_dtypes.py); a cast between e-classes of equal storage
    type is a view. `stop`: polled; when it returns True, binding ends (`stats["left_out"]` is then 1), or Halted is
    raised if the candidates do not cover the roots yet. `enough`: when `enough(False)` returns True, generation of
    fused kernels ends; when `enough(True)` does, generated kernels are bound in no further layouts;
    `stats["left_out"]` is then 1. `carried`: only these kernels, without any generation.
    """
    backends, whole = [b.opened() for b in backends], view
    try:
        if carried is None and any(b.generates and b.several for b in backends):
            view = without_rewrites_in_large_parts(whole, given_classes(whole))
        with gc_paused():
            return _HypergraphBuilder(view, backends, view_strides, types, stop, enough, carried).build()
    finally:
        for one in (whole, view):
            one.__dict__.pop(GROUPS_CACHE_ATTRIBUTE, None)


def given_classes(view: EGraphView) -> frozenset[int]:
    """The e-classes of an e-graph that are in memory before any kernel runs: inputs, states, and values computed from
    weights only."""
    leaves = {int(view.cls[n]) for n, op in enumerate(view.op) if op in ("input", "state", "param", "constant")}
    return frozenset(leaves | {cls for cls, weight in enumerate(view.weight) if weight})


class _HypergraphBuilder:
    def __init__(
        self, view: EGraphView, backends: Sequence[Backend], view_strides: ViewStrides, types: Sequence[Type] | None,
        stop: Callable[[], bool] = lambda: False, enough: Callable[[bool], bool] = lambda bound: False,
        carried: CarriedKernels | None = None,
    ) -> None:  # fmt: skip
        self.view, self.view_strides, self.stop = view, view_strides, stop
        self.enough, self.left_out = enough, False
        self.generators = [b.generated for b in backends if b.generates]
        self.packed = [b.packed_products for b in backends if b.generates]
        self.matcher = Matcher(view)
        templates = [t for b in backends for t in b.templates]
        self.views: dict[str, Template] = {t.name.rpartition(".")[2]: t for t in templates if t.family == "view"}
        self.copies = [t for t in templates if t.family == "copy" and isinstance(t.term, Var)]
        self.kernels = [t for t in templates if t.family != "view" and not isinstance(t.term, Var)]
        self.carried = carried
        if carried is not None:
            self.kernels = [t for t in self.kernels if id(t) in carried.templates]
        self.layouts = ClassLayouts(view, view.types if types is None else types, given_classes(view))
        preparing = {b.name: b.prepare for b in backends if b.generates}
        self.binder = MatchBinder(self.layouts, preparing, self._until_binding_ends)
        self._viewed: set[tuple[int, Vertex]] = set()
        self.bound_plain = self.halted = False  # whether all library kernels are bound; whether binding ended early

    def build(self) -> Hypergraph:
        """Fixpoint of two steps: views add layouts of existing values, and kernels are bound over the existing layouts
        (which may write new layouts, of which there are views again)."""
        matches = [m for t in self._polled(self.kernels) for m in self._matches(t)]
        plain = len(matches)
        wanted = [v for v in self._wanted_images(matches) if self.layouts.add_if_new(v)]
        matches += self._packed_products()
        needed = len(matches)
        matches += self._polled(self._generated(matches[plain:]))
        readers: dict[int, list[int]] = {}
        for i, match in enumerate(matches):
            for c in match.operands:
                readers.setdefault(c, []).append(i)
        views = list(self._views([Vertex(c, contiguous(self.layouts.shapes[c])) for c in self._readers]))
        views += self._views(list(wanted))
        views += self._views([v for v in self._other_layout_vertices(matches[plain:]) if self.layouts.add_if_new(v)])
        kernels: dict[int, list[Candidate]] = {}
        todo: Iterable[int] = range(len(matches))
        while todo:
            written: list[Vertex] = []
            for i in self._bindable(todo, plain, needed, matches):
                kernels[i] = self.binder.bound(matches[i])
                if matches[i].template.layout is not None:
                    written += [c.output for c in kernels[i]]
            # Only now: all matches are bound over the layouts that they were prepared for
            fresh = [v for v in written if self.layouts.add_if_new(v)]
            known = {c: len(s) for c, s in self.layouts.by_class.items()}
            views += self._views(list(fresh))
            grown = {v.cls for v in fresh} | {c for c, s in self.layouts.by_class.items() if len(s) != known.get(c)}
            todo = sorted({i for c in grown for i in readers.get(c, ())})
        copies = [
            c for cls, layouts in self.layouts.by_class.items() for s in layouts[1:]
            if cls not in self.layouts.given for c in self._copies(Vertex(cls, s), self.layouts.row_major(cls))
        ]  # fmt: skip
        copies += [c for v in wanted for c in self._copies(self.layouts.row_major(v.cls), v)]
        found = [*views, *copies, *(c for i in sorted(kernels) for c in kernels[i])]
        roots = [Vertex(c, contiguous(self.layouts.shapes[c])) for c in self.view.roots]
        every = Hypergraph(self.view, found, self.layouts.given, roots)
        chosen = reachable(every, range(len(found)))
        if any(found[i].more for i in chosen):
            chosen = reachable(every, in_value_order(every, chosen))
        kept = [found[i] for i in chosen]
        vertices = {v for c in kept for v in c.outputs}
        if self.halted and not vertices.issuperset(v for v in roots if v.cls not in self.layouts.given):
            raise Halted
        stats = {"vertices": len(vertices), "candidates": len(kept), "matches": len(matches)}
        stats |= {"left_out": int(self.left_out)}
        return Hypergraph(self.view, kept, self.layouts.given, roots, stats, self.layouts.types)

    def _bindable(self, todo: Iterable[int], plain: int, needed: int, matches: Sequence[KernelMatch]) -> Iterator[int]:
        """Indices of matches to bind: the library kernels' ones (below `plain`), those of products with packed weights
        (below `needed`), whatever the time, then those of other generated kernels."""
        yield from self._polled(i for i in todo if i < plain)
        self.bound_plain = True
        yield from (i for i in todo if plain <= i < needed)
        yield from self._prepared([i for i in todo if i >= needed], matches)

    def _polled(self, items: Iterable[T]) -> Iterator[T]:
        """Yield the items, until `stop` returns True: then raise Halted, or end if all library kernels are bound."""
        for item in items:
            if self.stop():
                if not self.bound_plain:
                    raise Halted
                self.halted = self.left_out = True
                return
            yield item

    def _generation_ended(self) -> bool:
        """Whether to end the generation of fused kernels."""
        self.left_out |= self.enough(False)
        return self.left_out or self.stop()

    def _until_binding_ends(self, items: Iterable[T]) -> Iterator[T]:
        """Yield generated kernels to bind in layouts, until `enough(True)`."""
        for item in self._polled(items):
            if self.enough(True):
                self.left_out = True
                return
            yield item

    def _prepared(self, todo: Sequence[int], matches: Sequence[KernelMatch]) -> Iterator[int]:
        """Indices of matches of generated kernels, batch by batch, after their backends have prepared the batch.

        The first batch is small: it has the largest kernels, and a batch interrupted by the time limit is lost.
        """
        begin, count = 0, FIRST_BATCH_MATCHES
        while begin < len(todo):
            part = todo[begin : begin + count]
            self.binder.prepare([matches[i] for i in part])
            yield from self._until_binding_ends(part)
            begin, count = begin + count, min(2 * count, MAX_BATCH_MATCHES)

    def _packed_products(self) -> list[KernelMatch]:
        """The kernels of products with packed weights that backends generate for the view, whatever the time."""
        given, types = frozenset(self.layouts.given), self.layouts.types
        found = (m for make in self.packed if self.carried is None for m in make(self.view, given, types))
        return [KernelMatch(template, made[0], operands, (), made[1:]) for template, made, operands in found]

    def _generated(self, known: Sequence[KernelMatch]) -> Iterator[KernelMatch]:
        """Fused kernels that backends generate for the view, without the `known` ones.

        Generators choose fusion groups relative to the whole e-graph, so those of the original graph come first:
        rewriting then removes none of them.
        """
        if self.carried is not None:
            matched = {id(t) for t in self.kernels}
            yield from (m for m in self.carried.matches if id(m.template) not in matched)
            return
        seen = {(id(m.template), (m.cls, *m.more), m.operands) for m in known}
        own = self.view.original_nodes
        views = [self.view] if own is None or own.all() or not own.any() else [self.view.only(own), self.view]
        for view, generate in product(views, self.generators):
            for template, made, operands in generate(
                view, frozenset(self.layouts.given), self.layouts.types, enough=self._generation_ended
            ):
                if (key := (id(template), made, operands)) not in seen:
                    seen.add(key)
                    first, *more = made
                    yield KernelMatch(template, first, operands, (), tuple(more))

    def _other_layout_vertices(self, matches: Iterable[KernelMatch]) -> Iterator[Vertex]:
        """Vertices of classes that generated kernels may write in a layout other than row-major, in that layout.

        Consumers are bound in both layouts from the start.
        """
        for match in matches:
            template, cls = match.template, match.cls
            if template.layout is not None and cls not in self.layouts.turned:
                operands = [self.layouts.row_major(c) for c in match.operands]
                call = self.binder.call_of(template, match.attrs, operands, [self.layouts.row_major(cls)])
                made = Vertex(cls, canonical_strides(template.layout(call), self.layouts.shapes[cls]))
                if made != self.layouts.row_major(cls):
                    self.layouts.turned[cls] = made.strides
                    yield made

    def _matches(self, template: Template) -> Iterator[KernelMatch]:
        """Matches of a template.

        Further outputs are looked up by the variables that the first output binds; raises RuleError if they use others.
        """
        beside = [self._found(term) for term in template.terms[1:]]
        for names, _ in beside:
            if unbound := {*names} - {*self._bound_names(template.term)}:
                raise RuleError(
                    f"an output after the first reads {min(unbound)}, which the first does not read",
                    where=template.name,
                )
        for cls, binding in self.matcher.find(template.term, template.guards):
            more = [known.get(tuple([binding.get(n) for n in names])) for names, known in beside]
            if not any(c is None or c in self.layouts.given for c in (cls, *more)):
                operands = tuple([binding[o] for o in template.operands])
                attrs = tuple([(k[1:], v) for k, v in binding.items() if k[0] == "@"])
                yield KernelMatch(template, cls, operands, attrs, tuple([c for c in more if c is not None]))

    def _bound_names(self, term: Term) -> tuple[str, ...]:
        return (*variables(term), *(f"@{name}" for name in attr_variables(term)))

    def _found(self, term: Term) -> tuple[tuple[str, ...], dict[tuple[Any, ...], int]]:
        """(names that a term binds, class matched for each binding of these names)."""
        names = self._bound_names(term)
        return names, {tuple([b[n] for n in names]): cls for cls, b in self.matcher.find(term, ())}

    @cached_property
    def _readers(self) -> dict[int, list[int]]:
        """Class -> view e-nodes that have the class as operand."""
        found: dict[int, list[int]] = {}
        for op in self.views:
            for node in self.matcher.by_op.get(op, ()):
                found.setdefault(self.matcher.children(node)[0], []).append(node)
        return found

    def _views(self, todo: list[Vertex]) -> Iterator[Candidate]:
        """View candidates of the given vertices, to a fixpoint: each view may add a layout to its class."""
        while todo:
            source = todo.pop()
            for node in self._readers.get(source.cls, ()):
                cls = int(self.view.cls[node])
                if cls in self.layouts.given or (node, source) in self._viewed:
                    continue
                self._viewed.add((node, source))
                found = self._view_strides_of(node, source)
                if found is None:
                    continue
                made = Vertex(cls, canonical_strides(found, self.layouts.shapes[cls]))
                if made == source:
                    continue
                layouts = self.layouts.of(cls)
                if made.strides not in layouts:
                    if len(layouts) >= MAX_LAYOUTS:
                        continue
                    self.layouts.add(made)
                    todo.append(made)
                yield self._view(node, made, source)

    def _view_strides_of(self, node: int, source: Vertex) -> Strides | None:
        """Strides of a view e-node's value as a view of a vertex.

        None if the storage dtypes differ or a copy is needed. A cast between equal storage dtypes is a view.
        """
        if self.layouts.types[source.cls].dtype != self.layouts.types[int(self.view.cls[node])].dtype:
            return None
        if self.view.op[node] == "cast":
            return source.strides
        return self.view_strides(self.view.op[node], dict(self.view.attrs[node]), self.layouts.operand(source))

    def _view(self, node: int, made: Vertex, source: Vertex) -> Candidate:
        template, attrs = self.views[self.view.op[node]], dict(self.view.attrs[node])
        operand = template.operands[0]
        weight = frozenset({operand} if self.view.weight[source.cls] else ())
        call = Call({operand: self.layouts.operand(source)}, self.layouts.operand(made), attrs)
        return Candidate(template, made, ((operand, source),), call, weight)

    def _wanted_images(self, matches: Sequence[KernelMatch]) -> Iterator[Vertex]:
        """Channels-last vertices of values that some library kernels read in this layout only."""
        for match in matches:
            for operand in match.template.reads_last:
                cls = match.operands[match.template.operands.index(operand)]
                shape = self.layouts.shapes[cls]
                if len(shape) in (3, 4) and not self.layouts.weight[cls]:
                    n, c, *space = shape
                    first, *inner, _ = contiguous((n, *space, c))
                    yield Vertex(cls, canonical_strides((first, 1, *inner), shape))

    def _copies(self, source: Vertex, made: Vertex) -> Iterator[Candidate]:
        """Copies of a value from one layout to another."""
        for template in self.copies:
            operand = template.operands[0]
            call = Call({operand: self.layouts.operand(source)}, self.layouts.operand(made), {})
            if template.applies is None or template.applies(call):
                yield Candidate(template, made, ((operand, source),), call)
