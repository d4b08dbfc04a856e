"""What `saturate` returns: a saturated e-graph one can look at, class by class, with kernels, costs and the chosen term."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from html import escape
from typing import Any

from .egraph.graph import Graph
from .egraph.view import EGraphView
from .extract.kernel import Candidate, Priced
from .extract.plan import plan_of
from .extract.search import Choice

_STYLE = (
    "<style>.tg td,.tg th{text-align:left!important;vertical-align:top;padding:2px 10px;font-family:monospace;font-size:12px}"
    ".tg .chosen{background:#d9f2df;color:#000}.tg .cost{color:#777;float:right;margin-left:2em}.tg summary{cursor:pointer}"
    ".tg .root{font-weight:bold}.tg .weight{color:#999}</style>"
)


@dataclass(frozen=True)
class Explorer:
    """A saturated e-graph with its candidate kernels and the choice that is cheapest at known prices.

    In a notebook it shows its classes, a page at a time: e-nodes, kernels with their price in µs (m measured,
    p predicted, b bound), the chosen one marked. `page(n)` shows page n, `show(cls)` one class and its neighbours.
    """

    graph: Graph  # as given, at concrete sizes
    work: Graph  # simplified: what the e-graph was made from
    view: EGraphView
    choice: Choice

    @cached_property
    def kernels(self) -> dict[int, list[tuple[Candidate, Priced, bool]]]:
        """Class -> its candidate kernels with price and whether chosen, cheapest first."""
        chosen = set(self.choice.chosen)
        found: dict[int, list[tuple[Candidate, Priced, bool]]] = {}
        for i, c in enumerate(self.choice.hypergraph.candidates):
            found.setdefault(c.output.cls, []).append((c, self.choice.prices[i], i in chosen))
        for rows in found.values():
            rows.sort(key=lambda r: (not r[2], r[1].us))
        return found

    def plan(self) -> Any:
        """The chosen plan (`tg.optimize` also measures, verifies and times it)."""
        return plan_of(self.choice, self.work)

    def __repr__(self) -> str:
        return (
            f"e-graph of {self.graph.name}: {len(self.view)} e-nodes in {self.view.n_classes} classes, "
            f"{len(self.choice.hypergraph.candidates)} candidate kernels, best {self.choice.cost:.1f} µs"
        )

    @cached_property
    def order(self) -> list[int]:
        """Classes in the order of the view: those that the plan materializes from the outputs down, then the others."""
        made = [self.choice.hypergraph.candidates[i].output.cls for i in reversed(self.choice.chosen)]
        rest = sorted(set(self.kernels) - set(made))
        return [*dict.fromkeys([*self.view.roots, *made, *rest])]

    def page(self, number: int = 0, per_page: int = 30) -> Html:
        """One page of classes."""
        shown = self.order[number * per_page : (number + 1) * per_page]
        pages = -(-len(self.order) // per_page)
        head = f"<p>{escape(repr(self))}. Page {number} of 0…{pages - 1}; <code>.page(n)</code>, <code>.show(class)</code>.</p>"
        return Html(_STYLE + f'<div class="tg">{head}{self._table(shown)}</div>')

    def show(self, cls: int) -> Html:
        """One class, the classes it reads, and those that read it."""
        reads = {int(k) for n in self.view.nodes_of(cls) for k in self.view.kids(n)}
        users = sorted({int(self.view.cls[n]) for n in range(len(self.view)) if cls in self.view.kids(n)})
        shown = [cls, *sorted(reads), *users[:20]]
        head = f"<p>class {cls}: reads {len(reads)} classes, read by {len(users)} ({min(len(users), 20)} shown)</p>"
        return Html(_STYLE + f'<div class="tg">{head}{self._table(shown)}</div>')

    def _repr_html_(self) -> str:
        return str(self.page())

    def _table(self, classes: list[int]) -> str:
        rows = "".join(self._row(c) for c in classes)
        return f"<table><tr><th>class</th><th>type</th><th>equal terms</th><th>kernels (µs)</th></tr>{rows}</table>"

    def _row(self, cls: int) -> str:
        kind = "root" if cls in self.view.roots else "weight" if self.view.weight[cls] else ""
        nodes = [self._node(n) for n in self.view.nodes_of(cls).tolist()]
        terms = _folded(nodes, 6)
        kernels = _folded([self._kernel(*k) for k in self.kernels.get(cls, [])], 4)
        return f'<tr><td class="{kind}">c{cls}</td><td>{escape(str(self.view.types[cls]))}</td><td>{terms}</td><td>{kernels}</td></tr>'

    def _node(self, node: int) -> str:
        leaf = self.view.tensors.get(node)
        if leaf is not None:
            return f"<div>{_leaf(leaf)}</div>"
        attrs = "".join(f", {k}={v}" for k, v in self.view.attrs[node] if k != "dtype")
        operands = ", ".join(f"c{k}" for k in self.view.kids(node).tolist())
        return f"<div>{escape(f'{self.view.op[node]}({operands}{attrs})')}</div>"

    def _kernel(self, candidate: Candidate, price: Priced, chosen: bool) -> str:
        reads = ", ".join(f"{o}=c{v.cls}" for o, v in candidate.inputs)
        cost = "view" if candidate.is_view else f"{price.us:.2f} {price.source[0]}"
        mark = ' class="chosen"' if chosen else ""
        return f'<div{mark}><span class="cost">{cost}</span>{escape(f"{candidate.template.name}({reads})")}</div>'


class Html(str):
    """Markup that a notebook shows as such."""

    def _repr_html_(self) -> str:
        return str(self)


def _leaf(leaf: Any) -> str:
    name = dict(leaf.attrs).get("name", "")
    return escape(f"{leaf.op} {name}".strip())


def _folded(items: list[str], count: int) -> str:
    """The first few items; the rest behind a click."""
    head = "".join(items[:count])
    if len(items) <= count:
        return head
    return (
        head
        + f"<details><summary>{len(items) - count} more of {len(items)}</summary>{''.join(items[count:])}</details>"
    )
