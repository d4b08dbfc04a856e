"""Writes the e-classes of an explorer page by page as static HTML: no script, no network, legible on light and dark
backgrounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from typing import Any

from ..egraph.ir.graph import Graph
from ..egraph.patterns.pattern import PatternCall, Var
from ..egraph.view.view import EGraphView
from ..extract.model.kernel import Candidate
from ..extract.model.pricing import Priced
from ..extract.search.search import Choice
from ..wording import counted, rewriting_end
from .names import value_name

PER_PAGE = 24
MAX_PAGES = 6  # pages embedded in one HTML document; `page(n)` renders the others

_STYLE = """<style>
.tg{font:13px/1.45 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;max-width:72rem}
.tg p{margin:.3em 0}.tg h4{font:600 14px/1.4 system-ui,sans-serif;margin:1em 0 .3em}
.tg .chip{display:inline-block;border:1px solid rgba(128,128,128,.4);border-radius:1em;padding:0 .7em;margin:0 .4em .3em 0}
.tg table{border-collapse:collapse;width:100%;margin:0;font:inherit}
.tg tr,.tg tr:nth-child(even),.tg tr:hover{background:none!important}
.tg tr{border-top:1px solid rgba(128,128,128,.3)}
.tg td,.tg th{text-align:left!important;vertical-align:top!important;padding:.25em .8em .25em 0!important;white-space:normal}
.tg th{font-weight:600;opacity:.65}
.tg .right{text-align:right!important;white-space:nowrap}
.tg .line{padding:0 .35em;border-left:3px solid transparent;overflow-wrap:anywhere}
.tg .chosen{background:rgba(46,160,67,.17);border-left-color:rgb(46,160,67)}
.tg tr:target{background:rgba(230,160,0,.22)!important}
.tg .cost{float:right;margin-left:1em;white-space:nowrap}
.tg .muted{opacity:.6}.tg .tag{font-size:11px;opacity:.75;display:block}
.tg a{color:inherit;text-decoration:underline dotted}
.tg .name{color:#1f6feb}@media(prefers-color-scheme:dark){.tg .name{color:#79b8ff}}
.tg summary{cursor:pointer}.tg details.pages>summary{font:600 13px system-ui,sans-serif;padding:.35em 0}
.tg .bar{display:inline-block;height:.65em;background:rgb(46,160,67);border-radius:2px;min-width:1px}
</style>"""


@dataclass(frozen=True)
class StaticPages:
    """The HTML of an e-graph `view` with its candidate kernels, of which `choice` are chosen: `page(n)`, `show(cls)`,
    and the display of a notebook."""

    graph: Graph  # the original model at concrete sizes
    work: Graph  # the simplified graph from which the e-graph was built
    view: EGraphView
    choice: Choice

    @cached_property
    def kernels(self) -> dict[int, list[tuple[Candidate, Priced, bool]]]:
        """E-class -> candidate kernels that compute it, as (candidate, price, whether chosen): the chosen one first,
        then by price."""
        chosen = set(self.choice.chosen)
        found: dict[int, list[tuple[Candidate, Priced, bool]]] = {}
        for i, c in enumerate(self.choice.hypergraph.candidates):
            for v in c.outputs:
                found.setdefault(v.cls, []).append((c, self.choice.prices[i], i in chosen))
        for rows in found.values():
            rows.sort(key=lambda r: (not r[2], r[1].us))
        return found

    def __repr__(self) -> str:
        return (
            f"e-graph of {self.graph.name}: {counted(len(self.view), 'e-node')} in "
            f"{counted(self.view.n_classes, 'class', 'classes')}, "
            f"{counted(len(self.choice.hypergraph.candidates), 'candidate kernel')}, best {self.choice.cost:.1f} µs; "
            f"rewriting {rewriting_end(self.view.report.stopped)}"
        )

    @cached_property
    def order(self) -> list[int]:
        """E-classes in page order: roots, values that the plan computes, their operands, the rest.

        Values of the plan are in order from the outputs down.
        """
        made = [v.cls for i in reversed(self.choice.chosen) for v in self.choice.hypergraph.candidates[i].outputs]
        reads = [v.cls for i in reversed(self.choice.chosen) for _, v in self.choice.hypergraph.candidates[i].inputs]
        rest = [c for c in range(self.view.n_classes) if len(self.view.nodes_of(c))]
        return list(dict.fromkeys([*self.view.roots, *made, *reads, *rest]))

    @property
    def pages(self) -> int:
        """Number of pages of e-classes."""
        return max(1, -(-len(self.order) // PER_PAGE))

    def page(self, number: int = 0) -> Html:
        """HTML of the page of e-classes with this number, from 0 on."""
        return self._framed(
            f"<h4>Classes, page {number} of 0–{self.pages - 1}</h4>{self._table(self._on_page(number))}"
        )

    def show(self, cls: int) -> Html:
        """HTML of one e-class, its operands and its users (at most 20 each)."""
        reads = sorted({int(k) for n in self.view.nodes_of(cls) for k in self.view.children(n)} - {cls})
        users = [u for u in self._users.get(cls, ()) if u != cls]
        parts = [f"<h4>Class c{cls}</h4>", self._table([cls])]
        for title, classes in (("It reads", reads), ("It is read by", users)):
            if classes:
                parts += [f"<h4>{title} {_count(len(classes), 'class', 'classes')}</h4>", self._table(classes[:20])]
        return self._framed("".join(parts))

    def _repr_html_(self) -> str:
        return str(self._framed(self._summary() + self._term() + self._all_pages()))

    # ------------------------------------------------------------ parts of the HTML page
    def _framed(self, body: str) -> Html:
        return Html(f'{_STYLE}<div class="tg">{body}</div>')

    def _on_page(self, number: int) -> list[int]:
        return self.order[number * PER_PAGE : (number + 1) * PER_PAGE]

    @cached_property
    def _users(self) -> dict[int, list[int]]:
        found: dict[int, dict[int, None]] = {}
        for node, cls in enumerate(self.view.cls.tolist()):
            for child in self.view.children(node).tolist():
                found.setdefault(child, {})[cls] = None
        return {k: list(v) for k, v in found.items()}

    def _summary(self) -> str:
        extraction, report = self.choice.extraction, self.view.report
        bound = "proven optimal" if extraction.optimal else f"proven bound {extraction.lower_bound:.1f} µs"
        chips = (
            f"{len(self.view)} e-nodes", f"{self.view.n_classes} classes", f"rewriting {rewriting_end(report.stopped)}",
            f"{len(self.choice.hypergraph.candidates)} candidate kernels", f"best {self.choice.cost:.1f} µs", bound,
        )  # fmt: skip
        return f"<h4>E-graph of {escape(self.graph.name)}</h4><p>{''.join(f'<span class=chip>{escape(c)}</span>' for c in chips)}</p>"

    def _term(self) -> str:
        """Table of the chosen kernels in execution order."""
        total = self.choice.cost or 1.0
        rows = []
        for i in self.choice.chosen:
            c, p = self.choice.hypergraph.candidates[i], self.choice.prices[i]
            if c.is_view:
                cost, share = '<span class="muted">view</span>', ""
            else:
                cost, share = _cost(p), f'<span class="bar" style="width:{60 * p.us / total:.0f}px"></span>'
            rows.append(
                f"<tr><td>{', '.join(self._link(v.cls) for v in c.outputs)}</td><td>{self._call(c)}</td>"
                f'<td class="muted">{escape(", ".join(str(self.view.types[v.cls]) for v in c.outputs))}</td><td class="right">{cost}</td><td>{share}</td></tr>'
            )
        return f"<h4>Chosen kernels, in order</h4>{_folded_rows(rows, 40)}"

    def _all_pages(self) -> str:
        """The first pages as collapsible sections, page 0 open."""
        shown = min(self.pages, MAX_PAGES)
        parts = ["<h4>Classes: equal terms, and the kernels that make them</h4>"]
        for n in range(shown):
            classes = self._on_page(n)
            first = n * PER_PAGE
            parts.append(
                f'<details class="pages"{" open" if n == 0 else ""}><summary>classes {first + 1}–{first + len(classes)} '
                f"of {len(self.order)}</summary>{self._table(classes)}</details>"
            )
        if shown < self.pages:
            parts.append(f'<p class="muted">{self.pages - shown} more pages: <code>.page({shown})</code> and on.</p>')
        return "".join(parts)

    def _table(self, classes: Sequence[int]) -> str:
        rows = "".join(self._row(c) for c in classes)
        head = '<tr><th style="width:13%">class</th><th style="width:39%">equal terms</th><th>kernels, µs</th></tr>'
        return f'<table style="table-layout:fixed">{head}{rows}</table>'

    def _row(self, cls: int) -> str:
        marked = self._marked(cls)
        nodes = sorted(self.view.nodes_of(cls).tolist(), key=lambda n: n not in marked)
        terms = _folded([self._node(n, n in marked) for n in nodes], 5)
        kernels = _folded([self._kernel(*k) for k in self.kernels.get(cls, [])], 4)
        if not kernels:
            kernels = f'<div class="line muted">{"made at load" if self.view.weight[cls] else "given"}</div>'
        tags = [t for t, on in (("output", cls in self.view.roots), ("weight", self.view.weight[cls])) if on]
        label = f'c{cls}<span class="tag">{escape(str(self.view.types[cls]))}{"".join(f"<br>{t}" for t in tags)}</span>'
        return f'<tr id="{self._anchor(cls)}"><td>{label}</td><td>{terms}</td><td>{kernels}</td></tr>'

    def _marked(self, cls: int) -> set[int]:
        """E-nodes of a class that its chosen kernels compute."""
        found = set()
        for candidate, _, chosen in self.kernels.get(cls, []):
            if chosen:
                found |= {n for n in self.view.nodes_of(cls).tolist() if self._computes(candidate, n)}
        return found

    def _computes(self, candidate: Candidate, node: int) -> bool:
        """Whether an e-node may be the root of a kernel pattern's match.

        Same op, same operands where the pattern has variables.
        """
        children = self.view.children(node).tolist()
        reads = {o: v.cls for o, v in candidate.inputs}
        if candidate.is_view:
            return self.view.op[node] == candidate.template.name.rpartition(".")[2] and children[0] in reads.values()
        made = zip(candidate.outputs, candidate.template.terms, strict=True)
        return any(
            isinstance(term, PatternCall) and vertex.cls == self.view.cls[node] and self.view.op[node] == term.op
            and all(not isinstance(a, Var) or reads.get(a.name) == k for a, k in zip(term.args, children))
            for vertex, term in made
        )  # fmt: skip

    def _node(self, node: int, chosen: bool) -> str:
        leaf = self.view.tensors.get(node)
        if leaf is not None:
            name = str(dict(leaf.attrs).get("name", ""))
            text = f'<span class="muted">{escape(leaf.op)}</span> <b>{escape(name)}</b>'
        else:
            attrs = "".join(f", {k}={v}" for k, v in self.view.attrs[node] if k not in ("dtype", "shape"))
            operands = ", ".join(self._link(k) for k in self.view.children(node).tolist())
            text = f'<span class="name">{escape(self.view.op[node])}</span>({operands}{escape(attrs if operands else attrs[2:])})'
        return f'<div class="line{" chosen" if chosen else ""}">{text}</div>'

    def _kernel(self, candidate: Candidate, price: Priced, chosen: bool) -> str:
        cost = '<span class="muted">view</span>' if candidate.is_view else _cost(price)
        mark = " chosen" if chosen else ""
        return f'<div class="line{mark}"><span class="cost">{cost}</span>{self._call(candidate)}</div>'

    def _call(self, candidate: Candidate) -> str:
        reads = ", ".join(f"{escape(o)}={self._link(v.cls, value_name(self.view, v))}" for o, v in candidate.inputs)
        return f'<span class="name">{escape(candidate.template.name)}</span>({reads})'

    def _anchor(self, cls: int) -> str:
        return f"tg-{self.work.digest()[:8]}-{cls}"

    def _link(self, cls: int, text: str = "") -> str:
        return f'<a href="#{self._anchor(cls)}">{text or f"c{cls}"}</a>'


class Html(str):
    """Markup that a notebook renders as HTML."""

    def __repr__(self) -> str:
        return f"<HTML of {len(self)} characters>"

    def _repr_html_(self) -> str:
        return str(self)


def _cost(price: Priced) -> str:
    if price.us == float("inf"):
        return '<span class="muted">failed</span>'
    return f'{price.us:.2f} <abbr class="muted" title="{price.source}">{_SHORT.get(price.source, price.source)}</abbr>'


_SHORT = {"measured": "meas.", "predicted": "pred."}


def _count(n: int, one: str, many: str) -> str:
    return f"{n} {one if n == 1 else many}"


def _folded(items: Sequence[str], count: int) -> str:
    """The first `count` items; the rest in a collapsed section."""
    head = "".join(items[:count])
    if len(items) <= count + 1:
        return "".join(items)
    return (
        f'{head}<details><summary class="muted">{len(items) - count} more</summary>{"".join(items[count:])}</details>'
    )


def _folded_rows(rows: Sequence[str], count: int) -> str:
    table: Any = lambda part: f"<table>{''.join(part)}</table>"
    if len(rows) <= count:
        return str(table(rows))
    return f"{table(rows[:count])}<details><summary>{len(rows) - count} more</summary>{table(rows[count:])}</details>"
