"""Defines multi-output fusion groups, and terms over other leaves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ...egraph.builders.builders import input as placeholder
from ...egraph.ir.tensor import Tensor, rebuild, topological
from ...egraph.view.view import EGraphView
from .policy import FusionGroup

MAX_OUTPUTS = 3  # outputs of a kernel


@dataclass(frozen=True)
class MultiOutputGroup:
    """A multi-output fusion group: output e-classes `classes` with their `terms`, over shared `leaves` as (input of the
    terms, e-class) pairs.

    `policy` is the name of the fusion policy of the first output's group.
    """

    classes: tuple[int, ...]
    terms: tuple[Tensor, ...]
    leaves: tuple[tuple[Tensor, int], ...]
    policy: str


def is_model_value(view: EGraphView, cls: int) -> bool:
    """Whether an e-class is a value of the original model or a root."""
    return bool(view.original_classes[cls]) or cls in view.roots


def operands(view: EGraphView, group: FusionGroup) -> tuple[int, int]:
    """Bytes and number of the operands of a group."""
    return sum(view.types[c].nbytes for _, c in group.leaves), len(group.leaves)


def inputs_of(view: EGraphView, classes: Iterable[int]) -> dict[int, Tensor]:
    """E-class -> a new input "x0", "x1", ... of its type, for each different one of `classes`, in their order."""
    types = view.types
    return {c: placeholder(f"x{n}", types[c].shape, types[c].dtype) for n, c in enumerate(dict.fromkeys(classes))}


def over(r: FusionGroup, known: Mapping[int, Tensor], term: Tensor | None = None) -> Tensor:
    """The term of a group, or its part `term`, over other tensors of its leaf classes."""
    change = {leaf: known[c] for leaf, c in r.leaves}
    return rebuild([r.term if term is None else term], lambda t, args: change.get(t))[0]


def ordered(terms: Sequence[Tensor], named: dict[int, Tensor]) -> tuple[tuple[Tensor, int], ...]:
    """(leaf, class) pairs in order of first use."""
    classes = {leaf: c for c, leaf in named.items()}
    return tuple((t, classes[t]) for t in topological(terms) if t in classes)
