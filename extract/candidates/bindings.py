"""Binds matched kernels to layouts (strides in memory): makes the candidates of a match, one for each combination of
layouts of its operands."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice, product
from typing import Any, NamedTuple

from ..model.kernel import (
    MAX_LAYOUT_COMBINATIONS,
    Call,
    Candidate,
    Operand,
    Strides,
    Template,
    Vertex,
)
from .image_layouts import ImageLayout, KernelImageLayouts, image_layout_indices
from .layouts import ClassLayouts, canonical_strides


class KernelMatch(NamedTuple):
    """A kernel template matched at an e-class: the e-classes of its operands and the values of its attribute variables.

    `cls` is the e-class of the first output, `more` are those of further outputs.
    """

    template: Template
    cls: int
    operands: tuple[int, ...]
    attrs: tuple[tuple[str, Any], ...]
    more: tuple[int, ...] = ()


class BoundForm(NamedTuple):
    """One binding of a match to layouts.

    `call`: the kernel call. `picks`: for each operand, index of its layout in the list of layouts of its e-class.
    `made`: strides of the output (None: row-major). `weights`: names of the operands that are computed from weights
    only.
    """

    picks: tuple[int, ...]
    call: Call
    made: Strides | None
    weights: frozenset[str]


class MatchBinder:
    """Binds matches to the layouts of their operands. Equal matches, as of repeated layers, are bound once.

    `preparing`: by backend name, `Backend.prepare` (which lowers kernels in advance) of the backends that generate
    kernels. `until_binding_ends`: wraps an iterator of such preparations and ends it when no further generated kernels
    may be bound.
    """

    def __init__(
        self, layouts: ClassLayouts, preparing: Mapping[str, Callable[..., Any]],
        until_binding_ends: Callable[[Iterable[Any]], Iterator[Any]],
    ) -> None:  # fmt: skip
        self.layouts, self.preparing, self.until_binding_ends = layouts, preparing, until_binding_ends
        self._calls: dict[tuple[Any, ...], Call | None] = {}
        self._forms: dict[tuple[Any, ...], list[BoundForm]] = {}

    def bound(self, match: KernelMatch) -> list[Candidate]:
        """Candidates of a match, one for each admitted combination of the layouts that its operands are known to have.

        Matches that differ only in their e-classes (repeated layers) share one list of bindings.
        """
        template, cls, operands, _, others = match
        row_major = self.layouts.row_major(cls)
        more = tuple([self.layouts.row_major(c) for c in others])
        key = self._form_key(match)
        forms = self._forms.get(key)
        if forms is None:
            forms = self._forms[key] = list(self._find_forms(match))
        if not forms or cls in operands or not {*others}.isdisjoint(operands):
            return []
        options = [self.layouts.inputs_of(o, c) for o, c in zip(template.operands, operands)]
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

    def _form_key(self, match: KernelMatch) -> tuple[Any, ...]:
        """Cache key of a match's bindings: matches with equal keys have the same bindings."""
        made = map(self.layouts.made_kind, (match.cls, *match.more))
        return (id(match.template), match.attrs, *made, *map(self.layouts.kind, match.operands))

    def prepare(self, matches: Sequence[KernelMatch]) -> None:
        """Let the backends lower the generated kernels of `matches` in advance (`Backend.prepare`), for all calls that
        `bound` may make of them."""
        asked: dict[str, list[tuple[Template, Call]]] = {name: [] for name in self.preparing}
        seen, known = set[tuple[Any, ...]](), set(self.layouts.by_class)
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
                    wanted.append((template, self.call_of(template, match.attrs, chosen, outputs)))
        self.layouts.keep(known)  # class order is binding order: undo insertions
        for prepared in [
            self.preparing[name](calls) for name, calls in asked.items()
        ]:  # all at once: they share workers
            for _ in self.until_binding_ends(prepared):
                pass

    def _picked(self, match: KernelMatch) -> Iterator[tuple[tuple[int, ...], list[Vertex], list[Vertex]]]:
        """Yield the layout combinations in which a match is bound, as (layout index of each operand, operand vertices,
        output vertices).
        """
        template, cls, operands, _, more = match
        if any(not self.layouts.weight[c] for o, c in zip(template.operands, operands) if o in template.prep):
            return
        options = [self.layouts.vertices_of(c) for c in operands]
        allowed = [
            [i for i, v in enumerate(vertices) if self.layouts.layout_id(v)[1]]
            if operand in template.dense or "*" in template.dense
            else range(len(vertices))
            for operand, vertices in zip(template.operands, options)
        ]
        outputs = [self.layouts.row_major(c) for c in (cls, *more)]
        alternatives: Iterable[Sequence[Sequence[int]]] = [allowed]
        if template.backend in self.preparing:
            alternatives = self._image_layouts_of(match, allowed).uniform
        picked = dict.fromkeys(
            picks for layouts in alternatives for picks in islice(_layout_combinations(layouts), template.combinations)
        )
        for picks in picked:
            yield picks, [o[i] for o, i in zip(options, picks)], outputs

    def _image_layouts_of(self, match: KernelMatch, allowed: Sequence[Sequence[int]]) -> KernelImageLayouts:
        """Image layouts of the operands and outputs of a generated kernel's match."""
        made = (match.cls, *match.more)
        return KernelImageLayouts(
            allowed,
            [
                image_layout_indices(
                    self.layouts.of(c), None if c in self.layouts.given else self.layouts.turned.get(c)
                )
                for c in match.operands
            ],
            any(image_layout_indices(self.layouts.of(c), self.layouts.turned.get(c)) for c in made),
            ImageLayout.ROWS if match.template.layout is None else ImageLayout.TURNED,
            not self.layouts.roots.isdisjoint(made),
        )

    def _find_forms(self, match: KernelMatch) -> Iterator[BoundForm]:
        template = match.template
        weights = frozenset([o for o, c in zip(template.operands, match.operands) if self.layouts.weight[c]])
        for picks, chosen, outputs in self._picked(match):
            call = self._call(template, match.attrs, chosen, outputs)
            if call is not None:
                yield BoundForm(picks, call, None if template.layout is None else call.output.strides, weights)

    def _call(
        self, template: Template, attrs: tuple[Any, ...], chosen: Sequence[Vertex], outputs: Sequence[Vertex]
    ) -> Call | None:
        """The call of a template on the given vertices, or None if the template does not apply.

        Equal calls are one object.
        """
        key = self._call_key(template, attrs, chosen, outputs)
        if key not in self._calls:
            call = self.call_of(template, attrs, chosen, outputs)
            if template.applies is not None and not template.applies(call):
                self._calls[key] = None
            else:
                if template.layout is not None:
                    strides = canonical_strides(template.layout(call), self.layouts.shapes[outputs[0].cls])
                    call = replace(call, output=Operand(call.output.type, strides))
                self._calls[key] = call
        return self._calls[key]

    def _call_key(
        self, template: Template, attrs: tuple[Any, ...], chosen: Sequence[Vertex], outputs: Sequence[Vertex]
    ) -> tuple[Any, ...]:
        """Deduplication key: equivalent kernel calls get equal keys."""
        places = [tuple(self.layouts.layout_id(v)[0] for v in vertices) for vertices in (chosen, outputs)]
        return (id(template), *places, attrs)

    def call_of(
        self, template: Template, attrs: tuple[Any, ...], chosen: Sequence[Vertex], outputs: Sequence[Vertex]
    ) -> Call:
        """Makes the call of a template (a kernel's pattern and code) on operands `chosen` (in the template's order),
        with attribute values `attrs` and row-major outputs. Whether the template applies to the call is not checked."""
        first, *more = map(self.layouts.operand, outputs)
        operands = {o: self.layouts.operand(v) for o, v in zip(template.operands, chosen)}
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
