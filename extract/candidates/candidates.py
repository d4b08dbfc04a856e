"""From an e-graph view to the kernel hypergraph: all candidate kernels of all backends, for each value and layout.

Vertices are (e-class, layout) pairs; candidates are hyperedges. Weight-only classes are computed once at load time and
are available row-major at no cost. Views (reshape, permute, slice, …) of existing values cost nothing either: they only
add layouts, at most `MAX_LAYOUTS` per class. Intermediate values of a fused kernel are not vertices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain, islice, product
from typing import Any, NamedTuple, TypeVar

from ...egraph.ir.dims import concrete
from ...egraph.ir.ops import Type
from ...egraph.ir.pattern import Term, Var, attr_variables, variables
from ...egraph.view.match import Matcher
from ...egraph.view.view import EGraphView
from ...errors import RuleError
from ..fusion.groups import GROUPS_CACHE_ATTRIBUTE
from ..fusion.maximal import without_rewrites_in_large_parts
from ..model.clock import Halted
from ..model.gc_pause import gc_paused
from ..model.kernel import (
    MAX_LAYOUT_COMBINATIONS,
    Backend,
    Call,
    Candidate,
    Operand,
    Strides,
    Template,
    Vertex,
    contiguous,
)
from .hypergraph import Hypergraph, ViewStrides, in_value_order, reachable
from .image_layouts import ImageLayout, KernelImageLayouts, image_layout_indices

# More than any graph seen has: a cut would depend on the rest of the e-graph, so that a larger e-graph could lose
# kernels.
T = TypeVar("T")
MAX_LAYOUTS = 16  # per class, including the row-major layout
# size of the first batch of matches that backends prepare, and of the largest (batches double)
FIRST_BATCH_MATCHES, MAX_BATCH_MATCHES = 64, 2000


def candidate_hypergraph(
    view: EGraphView, backends: Sequence[Backend], view_strides: ViewStrides, types: Sequence[Type] | None = None,
    stop: Callable[[], bool] = lambda: False, enough: Callable[[bool], bool] = lambda bound: False,
) -> Hypergraph:  # fmt: skip
    """The hypergraph of all kernels of some backends that match a view and that some root may use.

    `view_strides`: layout of a view of an operand, None where it needs a copy. `types`: storage types of the classes
    (model/storage_dtypes.py); a cast between classes of equal storage type is a view. `stop`: polled; raises Halted
    when it returns True, because a partial candidate set may not cover the roots. `enough`: when `enough(False)`
    returns True, generation of fused kernels ends; when `enough(True)` does, generated kernels are bound in no further
    layouts; `stats["left_out"]` is then 1.
    """
    backends, whole = [b.opened() for b in backends], view
    try:
        if any(b.generates and b.several for b in backends):
            view = without_rewrites_in_large_parts(whole, given_classes(whole))
        with gc_paused():
            return _HypergraphBuilder(view, backends, view_strides, types, stop, enough).build()
    finally:
        for one in (whole, view):
            one.__dict__.pop(GROUPS_CACHE_ATTRIBUTE, None)


def given_classes(view: EGraphView) -> frozenset[int]:
    """The classes of a view that are in memory before any kernel runs: inputs, states, and weight-only classes."""
    leaves = {int(view.cls[n]) for n, op in enumerate(view.op) if op in ("input", "state", "param", "constant")}
    return frozenset(leaves | {cls for cls, weight in enumerate(view.weight) if weight})


class _Match(NamedTuple):
    """A template matched at a class: operand classes and values of attribute variables.

    `more` are the classes of further outputs.
    """

    template: Template
    cls: int
    operands: tuple[int, ...]
    attrs: tuple[tuple[str, Any], ...]
    more: tuple[int, ...] = ()


class _BoundForm(NamedTuple):
    """One binding of a match to layouts.

    `picks` is the layout index of each operand, `made` the strides of the output (None: row-major), `weights` the
    weight-only operands.
    """

    picks: tuple[int, ...]
    call: Call
    made: Strides | None
    weights: frozenset[str]


class _HypergraphBuilder:
    def __init__(
        self, view: EGraphView, backends: Sequence[Backend], view_strides: ViewStrides, types: Sequence[Type] | None,
        stop: Callable[[], bool] = lambda: False, enough: Callable[[bool], bool] = lambda bound: False,
    ) -> None:  # fmt: skip
        self.view, self.view_strides, self.stop = view, view_strides, stop
        self.enough, self.left_out = enough, False
        self.types: Sequence[Type] = view.types if types is None else types
        self.generators = [b.generated for b in backends if b.generates]
        self.preparing = {b.name: b.prepare for b in backends if b.generates}
        self.matcher = Matcher(view)
        self.shapes = [concrete(t.shape) for t in view.types]
        templates = [t for b in backends for t in b.templates]
        self.views: dict[str, Template] = {t.name.rpartition(".")[2]: t for t in templates if t.family == "view"}
        self.copies = [t for t in templates if t.family == "copy" and isinstance(t.term, Var)]
        self.kernels = [t for t in templates if t.family != "view" and not isinstance(t.term, Var)]
        self.given = self._given()
        self.asked_for = {*view.roots}
        self.layouts: dict[int, list[Strides]] = {}
        # class -> non-row-major layout in which generated kernels may write the class
        self.turned: dict[int, Strides] = {}
        self._operands: dict[Vertex, Operand] = {}
        self._viewed: set[tuple[int, Vertex]] = set()
        self._weight = [bool(w) for w in view.weight]
        self._layout_ids: dict[Vertex, tuple[int, bool]] = {}
        self._numbers: dict[tuple[Any, ...], int] = {}
        self._calls: dict[tuple[Any, ...], Call | None] = {}
        self._forms: dict[tuple[Any, ...], list[_BoundForm]] = {}
        self._vertices: dict[int, list[Vertex]] = {}  # class -> one vertex for each layout found so far
        # (operand, class) -> inputs shared between candidates
        self._inputs: dict[tuple[str, int], list[tuple[str, Vertex]]] = {}
        self._kinds: dict[int, int] = {}
        self._made_kinds: dict[int, tuple[int, bool, bool]] = {}
        self._kind_numbers: dict[tuple[Any, ...], int] = {}

    def _given(self) -> dict[int, Strides]:
        return {cls: contiguous(self.shapes[cls]) for cls in sorted(given_classes(self.view))}

    def build(self) -> Hypergraph:
        """Fixpoint of two steps: views add layouts of existing values, and kernels are bound over the existing layouts
        (which may write new layouts, of which there are views again)."""
        matches = [m for t in self._polled(self.kernels) for m in self._matches(t)]
        plain = len(matches)
        matches += self._polled(self._generated())
        readers: dict[int, list[int]] = {}
        for i, match in enumerate(matches):
            for c in match.operands:
                readers.setdefault(c, []).append(i)
        views = list(self._views([Vertex(c, contiguous(self.shapes[c])) for c in self._readers]))
        views += self._views([v for v in self._other_layout_vertices(matches[plain:]) if self._is_new(v)])
        kernels: dict[int, list[Candidate]] = {}
        todo: Iterable[int] = range(len(matches))
        while todo:
            written: list[Vertex] = []
            for i in chain(
                self._polled(i for i in todo if i < plain), self._prepared([i for i in todo if i >= plain], matches)
            ):
                kernels[i] = self._bound(matches[i])
                if matches[i].template.layout is not None:
                    written += [c.output for c in kernels[i]]
            # Only now: all matches are bound over the layouts that they were prepared for
            fresh = [v for v in written if self._is_new(v)]
            known = {c: len(s) for c, s in self.layouts.items()}
            views += self._views(list(fresh))
            grown = {v.cls for v in fresh} | {c for c, s in self.layouts.items() if len(s) != known.get(c)}
            todo = sorted({i for c in grown for i in readers.get(c, ())})
        copies = [c for cls, layouts in self.layouts.items() for s in layouts[1:] for c in self._copies(cls, s)]
        found = [*views, *copies, *(c for i in sorted(kernels) for c in kernels[i])]
        roots = [Vertex(c, contiguous(self.shapes[c])) for c in self.view.roots]
        every = Hypergraph(self.view, found, self.given, roots)
        chosen = reachable(every, range(len(found)))
        if any(found[i].more for i in chosen):
            chosen = reachable(every, in_value_order(every, chosen))
        kept = [found[i] for i in chosen]
        vertices = {v for c in kept for v in c.outputs}
        stats = {"vertices": len(vertices), "candidates": len(kept), "matches": len(matches)}
        stats |= {"left_out": int(self.left_out)}
        return Hypergraph(self.view, kept, self.given, roots, stats, self.types)

    def _polled(self, items: Iterable[T]) -> Iterator[T]:
        """Yield the items; raise Halted when `stop` returns True."""
        for item in items:
            if self.stop():
                raise Halted
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

    def _prepared(self, todo: Sequence[int], matches: Sequence[_Match]) -> Iterator[int]:
        """Indices of matches of generated kernels, batch by batch, after their backends have prepared the batch.

        The first batch is small: it has the largest kernels, and a batch interrupted by the time limit is lost.
        """
        begin, count = 0, FIRST_BATCH_MATCHES
        while begin < len(todo):
            part = todo[begin : begin + count]
            self._prepare([matches[i] for i in part])
            yield from self._until_binding_ends(part)
            begin, count = begin + count, min(2 * count, MAX_BATCH_MATCHES)

    def _generated(self) -> Iterator[_Match]:
        """Fused kernels that backends generate for the view.

        Generators choose fusion groups relative to the whole e-graph, so those of the original graph come first:
        rewriting then removes none of them.
        """
        seen: set[tuple[int, tuple[int, ...], tuple[int, ...]]] = set()
        own = self.view.own
        views = [self.view] if own is None or own.all() or not own.any() else [self.view.only(own), self.view]
        for view, generate in product(views, self.generators):
            for template, made, operands in generate(
                view, frozenset(self.given), self.types, enough=self._generation_ended
            ):
                if (key := (id(template), made, operands)) not in seen:
                    seen.add(key)
                    first, *more = made
                    yield _Match(template, first, operands, (), tuple(more))

    def _other_layout_vertices(self, matches: Iterable[_Match]) -> Iterator[Vertex]:
        """Vertices of classes that generated kernels may write in a layout other than row-major, in that layout.

        Consumers are bound in both layouts from the start.
        """
        for match in matches:
            template, cls = match.template, match.cls
            if template.layout is not None and cls not in self.turned:
                operands = [self._row_major(c) for c in match.operands]
                call = self._call_of(template, match.attrs, operands, [self._row_major(cls)])
                made = Vertex(cls, _canonical_strides(template.layout(call), self.shapes[cls]))
                if made != self._row_major(cls):
                    self.turned[cls] = made.strides
                    yield made

    def _is_new(self, made: Vertex) -> bool:
        """Record a layout that a kernel writes; True if it was unknown and MAX_LAYOUTS permits it."""
        layouts = self._layouts_of(made.cls)
        if made.strides in layouts or len(layouts) >= MAX_LAYOUTS:
            return False
        self._add_layout(made)
        return True

    def _add_layout(self, made: Vertex) -> None:
        self._layouts_of(made.cls).append(made.strides)
        self._vertices.pop(made.cls, None)
        self._kinds.pop(made.cls, None)

    def _matches(self, template: Template) -> Iterator[_Match]:
        """Matches of a template.

        Further outputs are looked up by the variables that the first output binds; raises RuleError if they use others.
        """
        beside = [self._found(term) for term in template.terms[1:]]
        for names, _ in beside:
            if unbound := {*names} - {*self._bound_names(template.term)}:
                raise RuleError(f"a further output reads {min(unbound)}, the first does not", where=template.name)
        for cls, binding in self.matcher.find(template.term, template.guards):
            more = [known.get(tuple([binding.get(n) for n in names])) for names, known in beside]
            if not any(c is None or c in self.given for c in (cls, *more)):
                operands = tuple([binding[o] for o in template.operands])
                attrs = tuple([(k[1:], v) for k, v in binding.items() if k[0] == "@"])
                yield _Match(template, cls, operands, attrs, tuple([c for c in more if c is not None]))

    def _bound_names(self, term: Term) -> tuple[str, ...]:
        return (*variables(term), *(f"@{name}" for name in attr_variables(term)))

    def _found(self, term: Term) -> tuple[tuple[str, ...], dict[tuple[Any, ...], int]]:
        """(names that a term binds, class matched for each binding of these names)."""
        names = self._bound_names(term)
        return names, {tuple([b[n] for n in names]): cls for cls, b in self.matcher.find(term, ())}

    def operand(self, vertex: Vertex) -> Operand:
        """The vertex as an operand (type and strides); cached."""
        found = self._operands.get(vertex)
        if found is None:
            found = self._operands[vertex] = Operand(self.types[vertex.cls], vertex.strides)
        return found

    def _layouts_of(self, cls: int) -> list[Strides]:
        found = self.layouts.get(cls)
        if found is None:
            found = self.layouts[cls] = [contiguous(self.shapes[cls])]
        return found

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
                if cls in self.given or (node, source) in self._viewed:
                    continue
                self._viewed.add((node, source))
                found = self._view_strides_of(node, source)
                if found is None:
                    continue
                made = Vertex(cls, _canonical_strides(found, self.shapes[cls]))
                if made == source:
                    continue
                layouts = self._layouts_of(cls)
                if made.strides not in layouts:
                    if len(layouts) >= MAX_LAYOUTS:
                        continue
                    self._add_layout(made)
                    todo.append(made)
                yield self._view(node, made, source)

    def _view_strides_of(self, node: int, source: Vertex) -> Strides | None:
        """Strides of a view e-node's value as a view of a vertex.

        None if the storage dtypes differ or a copy is needed. A cast between equal storage dtypes is a view.
        """
        if self.types[source.cls].dtype != self.types[int(self.view.cls[node])].dtype:
            return None
        if self.view.op[node] == "cast":
            return source.strides
        return self.view_strides(self.view.op[node], dict(self.view.attrs[node]), self.operand(source))

    def _view(self, node: int, made: Vertex, source: Vertex) -> Candidate:
        template, attrs = self.views[self.view.op[node]], dict(self.view.attrs[node])
        operand = template.operands[0]
        weight = frozenset({operand} if self.view.weight[source.cls] else ())
        call = Call({operand: self.operand(source)}, self.operand(made), attrs)
        return Candidate(template, made, ((operand, source),), call, weight)

    def _copies(self, cls: int, strides: Strides) -> Iterator[Candidate]:
        made, source = Vertex(cls, contiguous(self.shapes[cls])), Vertex(cls, strides)
        for template in self.copies:
            operand = template.operands[0]
            call = Call({operand: self.operand(source)}, self.operand(made), {})
            if template.applies is None or template.applies(call):
                yield Candidate(template, made, ((operand, source),), call)

    def _vertices_of(self, cls: int) -> list[Vertex]:
        found = self._vertices.get(cls)
        if found is None:
            found = self._vertices[cls] = [Vertex(cls, s) for s in self._layouts_of(cls)]
        return found

    def _kind(self, cls: int) -> int:
        """Id of what affects the bindings of a class as an operand: type, layouts, whether it is given or a weight.
        Equal for equal properties.
        """
        found = self._kinds.get(cls)
        if found is None:
            lies = tuple(self._layouts_of(cls)), self.turned.get(cls), cls in self.given
            key = self.types[cls].dtype, self.shapes[cls], lies, self._weight[cls]
            found = self._kinds[cls] = self._kind_numbers.setdefault(key, len(self._kind_numbers))
        return found

    def _bound(self, match: _Match) -> list[Candidate]:
        """The candidates of a match over the available operand layouts.

        Matches with equal keys (repeated layers) share one list of bindings.
        """
        template, cls, operands, _, others = match
        row_major = self._row_major(cls)
        more = tuple([self._row_major(c) for c in others])
        key = self._form_key(match)
        forms = self._forms.get(key)
        if forms is None:
            forms = self._forms[key] = list(self._find_forms(match))
        if not forms or cls in operands or not {*others}.isdisjoint(operands):
            return []
        options = [self._inputs_of(o, c) for o, c in zip(template.operands, operands)]
        return [
            Candidate(
                template,
                row_major if made is None else Vertex(cls, made),
                tuple([o[i] for o, i in zip(options, picks)]),
                call,
                weights,
                more,
            )
            for picks, call, made, weights in forms
        ]

    def _form_key(self, match: _Match) -> tuple[Any, ...]:
        """Cache key of a match's bindings: matches with equal keys have the same bindings."""
        made = map(self._made_kind, (match.cls, *match.more))
        return (id(match.template), match.attrs, *made, *map(self._kind, match.operands))

    def _made_kind(self, cls: int) -> tuple[int, bool, bool]:
        """What affects the bindings of a class as an output: (id of type and row-major layout, whether
        generated kernels may write another layout, whether it is a root). Cached, since the layouts of outputs
        are known before any
        kernel is bound."""
        found = self._made_kinds.get(cls)
        if found is None:
            number, _ = self._layout_id(self._row_major(cls))
            found = self._made_kinds[cls] = number, cls in self.turned, cls in self.asked_for
        return found

    def _inputs_of(self, operand: str, cls: int) -> list[tuple[str, Vertex]]:
        """The class's vertices as inputs of an operand.

        Candidates share these tuples, to keep the number of objects that the cyclic garbage collector traverses small.
        """
        found = self._inputs.setdefault((operand, cls), [])
        if len(found) < len(self._layouts_of(cls)):
            found += [(operand, v) for v in self._vertices_of(cls)[len(found) :]]
        return found

    def _row_major(self, cls: int) -> Vertex:
        """The class's row-major vertex."""
        return self._vertices_of(cls)[0]

    def _prepare(self, matches: Sequence[_Match]) -> None:
        """Call `prepare` of backends that have one, with all calls that the matches may become."""
        asked: dict[str, list[tuple[Template, Call]]] = {name: [] for name in self.preparing}
        seen, known = set[tuple[Any, ...]](), set(self.layouts)
        for match in matches if asked else ():
            template, wanted = match.template, asked.get(match.template.backend)
            kind = self._form_key(match)
            if wanted is None or template.applies is None or kind in self._forms or kind in seen:
                continue
            seen.add(kind)
            for _, chosen, outputs in self._picked(match):
                key = self._call_key(template, match.attrs, chosen, outputs)
                if key not in self._calls and key not in seen:
                    seen.add(key)
                    wanted.append((template, self._call_of(template, match.attrs, chosen, outputs)))
        for cls in [c for c in self.layouts if c not in known]:  # class order is binding order: undo insertions
            del self.layouts[cls]
            self._vertices.pop(cls, None)
        for prepared in [
            self.preparing[name](calls) for name, calls in asked.items()
        ]:  # all at once: they share workers
            for _ in self._until_binding_ends(prepared):
                pass

    def _picked(self, match: _Match) -> Iterator[tuple[tuple[int, ...], list[Vertex], list[Vertex]]]:
        """Yield the layout combinations in which a match is bound, as (layout index of each operand, operand vertices,
        output vertices).
        """
        template, cls, operands, _, more = match
        if any(not self._weight[c] for o, c in zip(template.operands, operands) if o in template.prep):
            return
        options = [self._vertices_of(c) for c in operands]
        allowed = [
            [i for i, v in enumerate(vertices) if self._layout_id(v)[1]]
            if operand in template.dense or "*" in template.dense
            else range(len(vertices))
            for operand, vertices in zip(template.operands, options)
        ]
        outputs = [self._row_major(c) for c in (cls, *more)]
        ways: Iterable[Sequence[Sequence[int]]] = [allowed]
        if template.backend in self.preparing:
            ways = self._image_layouts_of(match, allowed).uniform
        picked = dict.fromkeys(
            picks for way in ways for picks in islice(_layout_combinations(way), template.combinations)
        )
        for picks in picked:
            yield picks, [o[i] for o, i in zip(options, picks)], outputs

    def _image_layouts_of(self, match: _Match, allowed: Sequence[Sequence[int]]) -> KernelImageLayouts:
        """Image layouts of the operands and outputs of a generated kernel's match."""
        made = (match.cls, *match.more)
        return KernelImageLayouts(
            allowed,
            [
                image_layout_indices(self._layouts_of(c), None if c in self.given else self.turned.get(c))
                for c in match.operands
            ],
            any(image_layout_indices(self._layouts_of(c), self.turned.get(c)) for c in made),
            ImageLayout.ROWS if match.template.layout is None else ImageLayout.TURNED,
            not self.asked_for.isdisjoint(made),
        )

    def _find_forms(self, match: _Match) -> Iterator[_BoundForm]:
        template = match.template
        weights = frozenset([o for o, c in zip(template.operands, match.operands) if self._weight[c]])
        for picks, chosen, outputs in self._picked(match):
            call = self._call(template, match.attrs, chosen, outputs)
            if call is not None:
                yield _BoundForm(picks, call, None if template.layout is None else call.output.strides, weights)

    def _layout_id(self, vertex: Vertex) -> tuple[int, bool]:
        """(id of the vertex's type and layout, whether the vertex is dense)."""
        found = self._layout_ids.get(vertex)
        if found is None:
            operand = self.operand(vertex)
            number = self._numbers.setdefault(
                (operand.type.dtype, self.shapes[vertex.cls], operand.strides), len(self._numbers)
            )
            found = self._layout_ids[vertex] = (number, operand.dense)
        return found

    def _call(
        self, template: Template, attrs: tuple[Any, ...], chosen: Sequence[Vertex], outputs: Sequence[Vertex]
    ) -> Call | None:
        """The call of a template on the given vertices, or None if the template does not apply.

        Equal calls are one object.
        """
        key = self._call_key(template, attrs, chosen, outputs)
        if key not in self._calls:
            call = self._call_of(template, attrs, chosen, outputs)
            if template.applies is not None and not template.applies(call):
                self._calls[key] = None
            else:
                if template.layout is not None:
                    strides = _canonical_strides(template.layout(call), self.shapes[outputs[0].cls])
                    call = replace(call, output=Operand(call.output.type, strides))
                self._calls[key] = call
        return self._calls[key]

    def _call_key(
        self, template: Template, attrs: tuple[Any, ...], chosen: Sequence[Vertex], outputs: Sequence[Vertex]
    ) -> tuple[Any, ...]:
        """Deduplication key: equivalent kernel calls get equal keys."""
        places = [tuple(self._layout_id(v)[0] for v in vertices) for vertices in (chosen, outputs)]
        return (id(template), *places, attrs)

    def _call_of(
        self, template: Template, attrs: tuple[Any, ...], chosen: Sequence[Vertex], outputs: Sequence[Vertex]
    ) -> Call:
        """The call with row-major outputs, without checking whether the template applies."""
        first, *more = map(self.operand, outputs)
        operands = {o: self.operand(v) for o, v in zip(template.operands, chosen)}
        return Call(operands, first, dict(attrs), more=tuple(more))


def _layout_combinations(options: Sequence[Sequence[int]]) -> Iterator[tuple[int, ...]]:
    """Combinations of layout indices, one index per operand, without repetition, in this order.

    All operands' first layouts, all second, … (three slices of one product are all views of it); one operand in another
    layout than its first; mixed ones.
    """
    if not all(options):
        return
    alike = [tuple(o[min(k, len(o) - 1)] for o in options) for k in range(max(map(len, options), default=0))]
    first = tuple(o[0] for o in options)
    alone = [(*first[:n], other, *first[n + 1 :]) for n, o in enumerate(options) for other in o[1:]]
    yield from dict.fromkeys([*alike, *alone, *islice(product(*options), 4 * MAX_LAYOUT_COMBINATIONS)])


def _canonical_strides(strides: Strides, shape: Sequence[int]) -> Strides:
    """Canonical strides: axes of size 1 get the row-major stride, so that every dense value has exactly the row-major
    strides."""
    row_major = contiguous(shape)
    return tuple(w if d == 1 else s for s, w, d in zip(strides, row_major, shape))
