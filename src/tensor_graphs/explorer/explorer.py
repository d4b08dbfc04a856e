"""Holds the result of `saturate`: a saturated e-graph to inspect, with candidate kernels, prices and the chosen
term."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from numbers import Integral
from pathlib import Path
from typing import Any

from ..egraph.explain.explain import Explanation
from ..egraph.ir.tensor import Tensor
from ..errors import Unpicklable, UsageError
from ..extract.model.plan import Plan
from ..extract.search.plan import plan_of
from ..option_checks import is_budget, is_named
from ..pipeline.costs.prices import KernelBounds
from ..writing.files import named_path, write_text
from .derivations import Derivation, TermMatcher, derivations
from .static_pages import StaticPages
from .what_if import SOLVE_SECONDS, Question, WhatIf


@dataclass(frozen=True, repr=False)
class Explorer(Unpicklable, StaticPages):
    """A saturated e-graph with its candidate kernels and the cheapest choice at current prices.

    In a notebook it shows the chosen kernels in execution order and the e-classes page by page: e-nodes and kernels
    with price in µs (measured, predicted or a bound), chosen ones highlighted. `page(n)` renders page n, `show(cls)`
    one e-class with its operands and users.

    `widget()` and `save_html(path)` give the interactive viewer, `what_if(...)` extracts again under other conditions,
    `to_arrow()`, `to_json()`, `to_networkx()` and `to_dot()` give everything as data (docs/explore.md). It cannot be
    pickled or copied deeply (UsageError), since its kernels are loaded code.
    """

    kept_by = "tg.saturate where it is needed, or explorer.to_json() (data) or explorer.save_html(path) (the viewer)"

    facts: Mapping[int, KernelBounds] = field(default_factory=dict)  # per candidate; views are left out
    modules: Mapping[Tensor, str] = field(default_factory=dict)  # module paths of operations of `work`, where known
    sizes: Mapping[str, int] = field(
        default_factory=dict
    )  # of the source's free dimensions: the e-graph holds at these

    @cached_property
    def derivations(self) -> list[Derivation]:
        """Rule matches of the e-graph: which e-nodes each rule made, and from which."""
        return derivations(self.view)

    @cached_property
    def covered(self) -> list[frozenset[int]]:
        """E-nodes that each candidate kernel computes: those of its outputs and of the values fused into it."""
        terms = TermMatcher(self.view)
        return [frozenset(terms.of_candidate(c)) for c in self.choice.hypergraph.candidates]

    @cached_property
    def _question(self) -> Question:
        return Question(self)

    def what_if(
        self, forbid: Sequence[str] = (), pin: Sequence[str] = (), cost: Mapping[str, float] | None = None, *,
        seconds: float = SOLVE_SECONDS,
    ) -> WhatIf:  # fmt: skip
        """Difference between the plan and one extracted under other conditions. Nothing is rewritten or measured.

        `forbid`: kernels, e-nodes, layouts or rules that the plan must not use. `pin`: kernels that must run, e-nodes
        and layouts that the values of their e-classes must have where they are computed. `cost`: other times in µs.
        Selectors are texts: "k17" (candidate kernel), "n45" (e-node), "c12" (e-class), "c12@1,64" (layout),
        "rule:NAME", or a kernel's name; names may be patterns such as "np.*". Forbidding a rule excludes the e-nodes
        that only this rule, in either direction, leads to; equalities between the others stay. `seconds`: limit of
        each solve.

            explorer.what_if(forbid=["np.matmul"])
            explorer.what_if(pin=["k17"], cost={"c.reduction": 3.0})

        Raises UsageError for an unknown selector, NoPlanError if no plan is left.
        """
        is_named("cost", cost)
        is_budget("seconds", seconds)
        return self._question.ask(_texts("forbid", forbid), _texts("pin", pin), cost or {}, seconds=seconds)

    def fusing(self, *classes: int) -> list[int]:
        """Candidate kernels, by number, that compute values of all given e-classes in one call, cheapest first: none if
        there is no such kernel. Raises UsageError for numbers that are no e-class's."""
        cls = self.view.cls
        for c in classes:
            if not isinstance(c, Integral) or not 0 <= c < self.view.n_classes:
                raise UsageError(f"there is no e-class {c!r}", hint=f"a number from 0 to {self.view.n_classes - 1}")
        found = [i for i, used in enumerate(self.covered) if {int(cls[n]) for n in used}.issuperset(classes)]
        return sorted(found, key=lambda i: self.choice.prices[i].us)

    def error_of(self, candidate: int) -> float | None:
        """Measured relative error of a candidate kernel against float64; None if it was not measured."""
        facts = self.facts.get(candidate)
        return None if facts is None or facts.error is None else facts.error

    def plan(self) -> Plan:
        """The chosen plan. (`tg.optimize` also measures, verifies and times it.)"""
        return plan_of(self.choice, self.work)

    def explain(self) -> list[Explanation]:
        """Rule applications that lead from the model to the chosen kernels, per output."""
        from .explain_rewrites import explain_choice

        return explain_choice(self.work, self.view, self.choice, replay=False)[0]

    # ------------------------------------------------------------ pages
    def html(self) -> str:
        """The interactive viewer as one self-contained HTML document (script, no network)."""
        from .page import explorer_data, viewer_page

        return viewer_page(explorer_data(self), self.graph.name)

    def save_html(self, path: str | Path) -> Path:
        """Write `html()` to a file and return its path. Raises UnwritableError if it cannot be written, UsageError if
        `path` is no path."""
        place = named_path(path)
        write_text(place, self.html())
        return place

    def widget(self) -> Any:
        """The viewer as a Jupyter widget that answers what-if questions live. Raises UsageError without anywidget."""
        from .widget import widget

        return widget(self)

    # ------------------------------------------------------------ data
    def to_arrow(self) -> dict[str, Any]:
        """The e-graph, its kernels, the plan and the model as Arrow tables by name (see `tables.py`)."""
        from .exports import arrow_tables

        return arrow_tables(self)

    def to_json(self) -> dict[str, dict[str, list[Any]]]:
        """The tables of `to_arrow` as plain data: table -> column -> values. Unknown numbers are None."""
        from .exports import json_tables

        return json_tables(self)

    def to_networkx(self, what: str = "egraph") -> Any:
        """A NetworkX MultiDiGraph of `what`: "egraph" (e-classes, e-nodes), "candidates" (values, kernels) or "plan"
        (its kernels).

        Raises UsageError for another name, or without the package networkx.
        """
        from .exports import networkx_graph

        return networkx_graph(self, what)

    def to_dot(self, what: str = "egraph") -> str:
        """A graph of `to_networkx`, named by the same `what`, as text in the DOT language of Graphviz."""
        from .exports import dot_text

        return dot_text(self, what)


def _texts(name: str, selectors: Sequence[str]) -> Sequence[str]:
    """The selectors as a list; one text is one selector. Raises UsageError for anything else."""
    found = [selectors] if isinstance(selectors, str) else selectors
    if not isinstance(found, Sequence) or not all(isinstance(s, str) for s in found):
        raise UsageError(
            f"invalid argument {name}={found!r}", hint=f"{name} is a list of texts: kernels, e-nodes, layouts or rules"
        )
    return list(found)
