"""Carries kernels of a model's short form (egraph/blocks/short_form.py: the model with few of its repeated layers) over
to the whole model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ...egraph.builders.builders import input as placeholder
from ...egraph.patterns.pattern import build
from ...egraph.view.term_lookup import TermLookup
from ...egraph.view.view import EGraphView
from ..fusion.repeated_blocks import Correspondence
from ..model.kernel import Candidate
from .bindings import KernelMatch
from .hypergraph import Hypergraph


@dataclass(frozen=True)
class CarriedKernels:
    """The only kernels to bind in an e-graph of the whole model.

    `templates`: ids of their templates (patterns and code). `matches`: where those hold that are not matched by their
    patterns.
    """

    templates: frozenset[int]
    matches: list[KernelMatch]


def carried_kernels(short: Hypergraph, chosen: Iterable[int], whole: EGraphView) -> CarriedKernels:
    """Kernels in the e-graph `whole` of the whole model: the candidates `chosen` of its short form (the model with few
    of its repeated layers), at the corresponding e-classes of all copies of their blocks where their terms are in the
    e-graph."""
    to, lookup = Correspondence.of(short.view, whole), TermLookup(whole)
    matches, proofs = dict[tuple[int, ...], KernelMatch](), dict[int, Callable[[Sequence[int]], bool]]()
    candidates = [short.candidates[i] for i in chosen]
    for c in candidates:
        made, operands = [v.cls for v in c.outputs], [v.cls for _, v in c.inputs]
        for classes in to.copies((*made, *operands)):
            if (key := (id(c.template), *classes)) in matches:
                continue
            holds = proofs.get(id(c.template)) or proofs.setdefault(id(c.template), _proof(c, short.view, lookup))
            if holds(classes):
                first, *more = classes[: len(made)]
                matches[key] = KernelMatch(c.template, first, tuple(classes[len(made) :]), (), tuple(more))
    return CarriedKernels(frozenset(id(c.template) for c in candidates), [*matches.values()])


def _proof(c: Candidate, view: EGraphView, lookup: TermLookup) -> Callable[[Sequence[int]], bool]:
    """Function that tells whether a candidate's kernel holds at other e-classes: of its results, then of its
    operands."""
    leaves = {name: placeholder(name, view.types[v.cls].shape, view.types[v.cls].dtype) for name, v in c.inputs}
    terms = [build(term, leaves, dict(c.call.attrs)) for term in c.template.terms]
    holds = lookup.checker(terms, list(leaves.values()))
    return lambda classes: holds(classes[len(terms) :], classes[: len(terms)])


__all__ = ["CarriedKernels", "carried_kernels"]
