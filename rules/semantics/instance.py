"""Defines an instance of a rule: concrete types and attribute values for its variables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...egraph.builders import builders as api
from ...egraph.ir.tensor import Tensor
from ...egraph.ops.ops import Type
from ...egraph.patterns.pattern import build
from ...egraph.patterns.pattern_attrs import Fact
from ...egraph.patterns.rule import Rule

#: Raised by attribute expressions that have no value.
FAILURES = (IndexError, ValueError, KeyError, ZeroDivisionError, TypeError)


@dataclass(frozen=True)
class Instance:
    """Concrete types and attribute values for the variables of a rule.

    `weights` names the tensors that are parameters. `bounds` maps integer tensors that are used as indices to their
    exclusive upper bound.
    """

    types: Mapping[str, Type]
    attrs: Mapping[str, Any]
    weights: frozenset[str]
    bounds: Mapping[str, int] = field(default_factory=dict)

    def tensors(self) -> dict[str, Tensor]:
        """Make a leaf for each tensor variable: a param for weights, an input otherwise; returned by name."""
        return {n: (api.param if n in self.weights else api.input)(n, t.shape, t.dtype) for n, t in self.types.items()}

    def env(self) -> dict[str, Any]:
        """The environment for evaluating attribute expressions and guards."""
        return {**self.attrs, **{n: Fact(t, n in self.weights) for n, t in self.types.items()}}

    def sides(self, rule: Rule) -> list[tuple[Tensor, Tensor]]:
        """(left, right) of each pair of sides. Raises ShapeError or one of `FAILURES` if a side has no type."""
        tensors = self.tensors()
        return [(build(a, tensors, self.attrs), build(b, tensors, self.attrs)) for a, b in zip(rule.lefts, rule.rights)]

    def __str__(self) -> str:
        tensors = [f"{n}: {t}{' (weight)' if n in self.weights else ''}" for n, t in sorted(self.types.items())]
        return "; ".join([*tensors, *(f"{n} = {v!r}" for n, v in sorted(self.attrs.items()))])
