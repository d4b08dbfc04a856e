"""Holds the result of an extraction: the choice, its cost and the proven bound."""

from __future__ import annotations

import html
from dataclasses import dataclass, field
from typing import Any

from .problem import IntArray

COST_TIE = 1e-12  # relative difference attributed to the summation order of floats


def relative_gap(cost: float, lower: float) -> float:
    """Optimality gap (cost - lower) / cost; 0 where the difference is at most COST_TIE * cost, so also for cost 0.

    COST_TIE covers the summation order.
    """
    return (cost - lower) / cost if cost - lower > COST_TIE * cost else 0.0


@dataclass(frozen=True, eq=False)
class Extraction:
    """A valid choice with its cost and the proven lower bound on the optimum.

    `choice` int32[n_classes]: the node chosen in each class reachable from the roots, else -1. `cost`: its DAG cost, in
    the unit of the problem. `lower_bound`: no extraction is cheaper. `optimal`: whether `gap` is within the requested
    tolerance. `seconds`: wall time. `method`: names of the solver steps that found and proved the choice. `stats`:
    sizes, times and counts of the steps. `proven_rank`: for k-best, whether no cheaper extraction was missed.
    `choices`: from `tg.extract`, the id of the chosen node by the id of its class, roots first, operands last.
    """

    choice: IntArray
    cost: float
    lower_bound: float
    optimal: bool
    seconds: float
    method: str
    stats: dict[str, Any] = field(default_factory=dict)
    proven_rank: bool = False
    choices: dict[str, str] = field(default_factory=dict)

    @property
    def gap(self) -> float:
        """Optimality gap, (cost - lower_bound) / cost; 0 if the two are equal up to rounding."""
        return relative_gap(self.cost, self.lower_bound)

    @property
    def n_chosen(self) -> int:
        """Number of classes that the extraction uses."""
        return int((self.choice >= 0).sum())

    def summary(self) -> dict[str, str]:
        """Fields shown by the text and HTML representations."""
        return {
            "cost": f"{self.cost:.6g}",
            "lower bound": f"{self.lower_bound:.6g}",
            "gap": "proven optimal" if self.optimal else f"{self.gap:.2%}",
            "classes": str(self.n_chosen),
            "method": self.method,
            "seconds": f"{self.seconds:.3f}",
        }

    def __repr__(self) -> str:
        return "Extraction(" + ", ".join(f"{key}: {text}" for key, text in self.summary().items()) + ")"

    def _repr_html_(self) -> str:
        cells = "".join(
            f"<tr><th>{html.escape(k)}</th><td>{html.escape(v)}</td></tr>" for k, v in self.summary().items()
        )
        return f"<table>{cells}</table>"
