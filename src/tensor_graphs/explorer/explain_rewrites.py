"""Explains rewriting: per unique block (repeated subgraph), the chosen term and the rule applications that lead to
it."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..backends.verification.index_bounds import index_bounds
from ..egraph.blocks.blocks import BlockInstance, Blocks
from ..egraph.explain.explain import Explanation, classes_of, derive, explain
from ..egraph.explain.replay import ReplayResult, check
from ..egraph.ir.graph import Graph
from ..egraph.ir.tensor import LEAVES, Tensor, make, topological
from ..egraph.patterns.rule import Rule
from ..egraph.saturate.saturate import Limits
from ..egraph.saturate.union import congruent
from ..egraph.types.dims import concrete
from ..egraph.view.view import EGraphView
from ..errors import BadModelError, UsageError
from ..extract.model.work import graph_flops
from ..extract.search.plan import plan_of
from ..extract.search.search import Choice
from ..option_checks import is_limits, of_kind
from ..options import Options
from ..pipeline.context.session import Session, open_store
from ..pipeline.costs.measuring import chosen_backends
from ..pipeline.costs.prices import CostPricer
from ..pipeline.sources.source import as_graph
from ..pipeline.stages.choose import choose
from ..pipeline.stages.match import hypergraph
from ..pipeline.stages.prepare import prepare
from ..pipeline.stages.provenance import origin_of, read_origin
from ..pipeline.stages.rewrite import rewrite
from ..rules import ALL
from ..wording import counted

REPLAYED_FLOPS = 1e11  # flops above which a block is replayed only on request
REPLAYED_SIZE = 1 << 25  # elements of the largest value, likewise: replaying holds several float64 values per step
WHOLE_FLOPS = 1e9  # total flops of all steps above which each step is replayed on its subterm alone


@dataclass(frozen=True)
class BlockRewrites:
    """Rewriting of one unique block (repeated subgraph): for each output the steps to the chosen term (`explanations`),
    and the result of replaying them (`checked`, None if the block is too large for an automatic replay).

    `number`: of the block; `instances`: how often the model contains it; `nodes`, `e_nodes`: its operations and the
    e-nodes of its e-graph.
    """

    number: int
    instances: int
    nodes: int
    e_nodes: int
    inside: int = 0  # outputs without a kernel of their own: fused into kernels that extend beyond the block
    explanations: tuple[Explanation, ...] = ()
    checked: tuple[ReplayResult | None, ...] = ()
    given_up: str = ""  # reason why there are no explanations, or ""

    @property
    def steps(self) -> int:
        """Total steps of all outputs."""
        return sum(len(e.steps) for e in self.explanations)

    @property
    def verdict(self) -> str:
        """Text that says how many steps could not be reconstructed, and what replaying the others showed."""
        if self.given_up:
            return f"not explained: {self.given_up}"
        missing = sum(not s.reconstructed for e in self.explanations for s in e.steps)
        wrong = sum(len(c.wrong) for c in self.checked if c)
        text = f"{counted(missing, 'step')} not reconstructed, " if missing else ""
        text += f"{counted(self.inside, 'output')} inside kernels of several blocks, " if self.inside else ""
        if any(c is None for c in self.checked):
            return text + "not replayed"
        return text + (f"{counted(wrong, 'step')} WRONG" if wrong else "replayed")

    def __str__(self) -> str:
        head = f"block {self.number} x{self.instances}, {counted(self.nodes, 'node')}, {counted(self.e_nodes, 'e-node')}: {counted(self.steps, 'step')}, {self.verdict}"
        return "\n".join([head, *(str(e) for e in self.explanations if e.steps)])

    def to_json(self) -> dict[str, Any]:
        """The rewrites of the block (repeated subgraph) as JSON values."""
        return {
            "block": self.number, "instances": self.instances, "nodes": self.nodes, "e_nodes": self.e_nodes,
            "verdict": self.verdict, "inside": self.inside, "outputs": [e.to_json() for e in self.explanations],
        }  # fmt: skip

    def _repr_html_(self) -> str:
        from html import escape

        return f"<p>{escape(str(self).splitlines()[0])}</p>" + "".join(e._repr_html_() for e in self.explanations)


def explain_choice(
    graph: Graph, view: EGraphView, choice: Choice, rules: Iterable[Rule] = ALL, *, replay: bool | None = None
) -> tuple[list[Explanation], list[ReplayResult | None]]:
    """Rewrite steps by `rules` from each root to its chosen term, and the check of each, as (steps, checks); a check is
    None if the steps were not replayed.

    `replay` None: replay only small graphs.
    """
    fired = [d for r in rules for d in r.directions if not view.report.matches or view.report.matches.get(d.name)]
    found = explain(view, fired, graph.roots, origin_of(plan_of(choice, graph), graph).chosen)
    flops = graph_flops(list(graph.roots))
    replayed = _small(graph) if replay is None else replay
    whole = flops * sum(len(e.steps) for e in found) <= WHOLE_FLOPS
    bounds = index_bounds(graph)
    return found, [check(e, rules, bounds=bounds, whole=whole) if replayed else None for e in found]


def _small(block: Graph) -> bool:
    """Whether a block is small enough for an automatic replay."""
    largest = max(math.prod(concrete(n.shape)) for n in block.nodes())
    return largest <= REPLAYED_SIZE and graph_flops(list(block.roots)) <= REPLAYED_FLOPS


def explain_equality(a: Tensor, b: Tensor, *, limits: Limits | None = None) -> Explanation | None:
    """Rule applications that lead from one expression to the other; None if the rules do not prove them equal in the
    limits.

    Raises UsageError if their types differ, or for anything but expressions.
    """
    is_limits("limits", limits)
    of_kind("a tensor expression", Tensor)("a", a)
    of_kind("a tensor expression", Tensor)("b", b)
    return derive(a, b, ALL, limits)


def explain_rewrites(
    source: Any,
    example_inputs: Any = None,
    *,
    dims: Mapping[str, int] | None = None,
    backend: str = "auto",
    limits: Limits | None = None,
    replay: bool | None = None,
    trust: bool = False,
) -> list[BlockRewrites]:
    """Rewriting of a model: per unique block (repeated subgraph), the rule applications that lead from its term to the
    one chosen at current prices.

    Each block is extracted alone; the plan of the whole model may differ at block boundaries. Nothing is measured.
    Takes the sources of `optimize`, and its `trust`. `replay`: evaluate every step numerically; None: only for small
    blocks.
    """
    session = Session(Options(backend=backend, limits=limits, dims=dims, measure=False))
    graph = as_graph(source, example_inputs, dims=dims, trust=trust)
    rewritten = rewrite(session, prepare(session, graph, dims).work)
    return list(_blocks(session, rewritten.blocks, rewritten.block_views, replay))


def explain_saved(
    folder: str | Path,
    *,
    limits: Limits | None = None,
    effort: int = 1,
    exact: bool = False,
    rules: Sequence[Rule] = (),
    replay: bool | None = None,
    seconds: float = math.inf,
) -> list[BlockRewrites]:
    """Rewriting of a saved program: per unique block (repeated subgraph) and distinct chosen term, the rule
    applications that lead to that term.

    Rules are the built-in ones and `rules`. The blocks are rewritten again within `limits`, with `effort` and `exact`
    as the search had them. After `seconds` no further term is explained; the result gives the reason for each that is
    not. `replay`: evaluate every step numerically; None: only for small blocks. Raises UsageError if the program has no
    provenance, BadModelError if the rules no longer reach its terms.
    """
    origin = read_origin(Path(folder))
    roots, chosen = origin.roots, origin.chosen
    until = time.monotonic() + seconds
    tolerance = "exact" if exact else "eager"
    options = Options(backend="auto", limits=limits, effort=effort, tolerance=tolerance, measure=False, budget=math.inf)
    session = Session(options, own_rules=(*ALL, *rules))
    rewritten = rewrite(session, Graph.of(list(roots)))
    view, blocks, views = rewritten.view, rewritten.blocks, rewritten.block_views
    classes = classes_of(congruent(view), [*roots, *chosen])
    if any(classes.get(a) != classes.get(b) or a not in classes for a, b in zip(roots, chosen)):
        raise BadModelError(
            "the program's terms are not among those that the rules reach from its graph within the same limits",
            where=str(folder), hint="it was made by another version: name the model that it was made from",
        )  # fmt: skip
    terms: dict[int, Tensor] = {}
    for term in topological(chosen):
        if term in classes:
            terms.setdefault(classes[term], term)
    return list(_saved_blocks(blocks, views, classes, terms, session.rules, replay, until))


def _saved_blocks(
    blocks: Blocks, views: Sequence[EGraphView], classes: Mapping[Tensor, int], terms: Mapping[int, Tensor],
    rules: Sequence[Rule], replay: bool | None, until: float,
) -> Iterator[BlockRewrites]:  # fmt: skip
    """Chosen terms of each block, cut out of the whole graph at the leaves and deduplicated over instances."""
    for number, (block, view) in enumerate(zip(blocks.unique, views)):
        forms: dict[tuple[Tensor | None, ...], int] = {}
        for instance in blocks.instances:
            if instance.block == number:
                form = _cut(block.graph, instance, classes, terms)
                forms[form] = forms.get(form, 0) + 1
        for form, count in forms.items():
            sizes = number, count, len(block.graph.nodes()), len(view), sum(f is None for f in form)
            try:
                if time.monotonic() > until:
                    raise UsageError("out of time")
                yield BlockRewrites(*sizes, *_form(block.graph, view, form, rules, replay))
            except UsageError as error:
                yield BlockRewrites(*sizes, given_up=error.message)


def _form(
    block: Graph, view: EGraphView, form: Sequence[Tensor | None], rules: Sequence[Rule], replay: bool | None
) -> tuple[tuple[Explanation, ...], tuple[ReplayResult | None, ...]]:
    """Return (steps from a block's outputs to their chosen terms, check of each)."""
    pairs = [(r, t) for r, t in zip(block.roots, form) if t is not None]
    fired = [d for r in rules for d in r.directions if view.report.matches.get(d.name)]
    steps = explain(view, fired, [r for r, _ in pairs], [t for _, t in pairs])
    small = _small(block) if replay is None else replay
    bounds = index_bounds(block)
    return tuple(steps), tuple(check(e, rules, bounds=bounds, whole=False) if small else None for e in steps)


def _cut(
    block: Graph, instance: BlockInstance, classes: Mapping[Tensor, int], terms: Mapping[int, Tensor]
) -> tuple[Tensor | None, ...]:
    """Terms chosen for a block's outputs, over its leaves.

    None for an output without a kernel of its own (fused beyond the block).
    """
    leaves = {str(t.attr("name")): t for t in block.nodes() if t.op in ("input", "param", "state")}
    ends = {
        classes[value]: leaves[f"{prefix}{k}"]
        for prefix, values in (("in", instance.inputs), ("w", instance.params), ("s", instance.states))
        for k, value in enumerate(values) if value in classes and f"{prefix}{k}" in leaves
    }  # fmt: skip
    built: dict[Tensor, Tensor | None] = {}

    def cut(root: Tensor) -> Tensor | None:
        stack = [root]
        while stack:
            t = stack[-1]
            end = ends.get(classes.get(t, -1)) if t is not root else None
            if t in built:
                stack.pop()
            elif end is not None or not t.args:
                built[t] = end if end is not None else (None if t.op in LEAVES[:3] else t)
            elif missing := [a for a in t.args if a not in built]:
                stack += missing
            else:
                args = [a for x in t.args if (a := built[x]) is not None]
                built[t] = make(t.op, args, dict(t.attrs)) if len(args) == len(t.args) else None
        return built.pop(root)

    return tuple([cut(terms[c]) if (c := classes[v]) in terms else None for v in instance.outputs])


def _blocks(
    session: Session, blocks: Blocks, views: Sequence[EGraphView], replay: bool | None
) -> Iterator[BlockRewrites]:
    backends = chosen_backends(session.options)
    with open_store(session) as store:
        for number, (block, view) in enumerate(zip(blocks.unique, views)):
            found = hypergraph(session, view, backends)
            choice = choose(session, found, CostPricer(store), None)
            steps, checked = explain_choice(block.graph, view, choice, replay=replay)
            yield BlockRewrites(
                number, sum(i.block == number for i in blocks.instances), len(block.graph.nodes()), len(view), 0,
                tuple(steps), tuple(checked),
            )  # fmt: skip


__all__ = ["BlockRewrites", "explain_choice", "explain_equality", "explain_rewrites", "explain_saved"]
