"""Which rules turned a model into its plan: for every unique block the chosen term and the steps that lead to it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from . import pipeline
from .backends.registry import select
from .egraph.blocks import Blocks
from .egraph.explain import Explanation, derive, explain
from .egraph.graph import Graph, Tensor
from .egraph.pattern import build
from .egraph.replay import Checked, check
from .egraph.rule import Rule
from .egraph.saturate import Limits
from .egraph.view import EGraphView
from .extract.kernel import Vertex
from .extract.plan import WeightTerms
from .extract.search import Choice
from .extract.work import graph_flops
from .prices import CostPricer
from .rules import ALL
from .verify import index_bounds

REPLAYED_FLOPS = 1e11  # blocks with more arithmetic are explained, but replayed only if asked for
WHOLE_FLOPS = 1e9  # where all steps together have more, each is replayed on its subterm alone


@dataclass(frozen=True)
class BlockRewrites:
    """One unique block: how often it occurs, and per output the steps to the chosen term and what replaying them found
    (None where the block is too large to be replayed in passing)."""

    number: int
    instances: int
    nodes: int
    e_nodes: int
    explanations: tuple[Explanation, ...]
    checked: tuple[Checked | None, ...]

    @property
    def steps(self) -> int:
        """Steps of all outputs."""
        return sum(len(e.steps) for e in self.explanations)

    @property
    def verdict(self) -> str:
        """What is known of the steps."""
        missing = sum(not s.reconstructed for e in self.explanations for s in e.steps)
        wrong = sum(len(c.wrong) for c in self.checked if c)
        said = f"{missing} steps not reconstructed, " if missing else ""
        if any(c is None for c in self.checked):
            return said + "not replayed"
        return said + (f"{wrong} steps WRONG" if wrong else "replayed")

    def __str__(self) -> str:
        head = f"block {self.number} x{self.instances}, {self.nodes} nodes, {self.e_nodes} e-nodes: {self.steps} steps, {self.verdict}"
        return "\n".join([head, *(str(e) for e in self.explanations if e.steps)])

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "block": self.number, "instances": self.instances, "nodes": self.nodes, "e_nodes": self.e_nodes,
            "verdict": self.verdict, "outputs": [e.to_json() for e in self.explanations],
        }  # fmt: skip

    def _repr_html_(self) -> str:
        from html import escape

        return f"<p>{escape(str(self).splitlines()[0])}</p>" + "".join(e._repr_html_() for e in self.explanations)


def chosen_terms(choice: Choice) -> list[Tensor]:
    """The roots as the chosen kernels compute them: each kernel's pattern over the terms that it reads."""
    view, weights = choice.hypergraph.view, WeightTerms(choice.hypergraph.view)
    given = {int(view.cls[i]): leaf for i, leaf in view.tensors.items() if leaf.op in ("input", "state")}
    made: dict[Vertex, Tensor] = {}

    def read(vertex: Vertex) -> Tensor:
        if vertex in made:
            return made[vertex]
        return given[vertex.cls] if vertex.cls in given else weights.term(vertex.cls)

    for i in choice.chosen:
        c = choice.hypergraph.candidates[i]
        operands = {o: read(v) for o, v in c.inputs}
        for vertex, term in zip(c.outputs, c.template.terms, strict=True):
            made[vertex] = build(term, operands, dict(c.call.attrs))
    return [read(v) for v in choice.hypergraph.roots]


def explain_choice(
    graph: Graph, view: EGraphView, choice: Choice, rules: Iterable[Rule] = ALL, *, replay: bool | None = None
) -> tuple[list[Explanation], list[Checked | None]]:
    """Steps from a graph's roots to the chosen terms, and their check (`replay` None: unless that takes long)."""
    fired = [d for r in rules for d in r.directions if not view.report.matches or view.report.matches.get(d.name)]
    found = explain(view, fired, graph.roots, chosen_terms(choice))
    flops = graph_flops(list(graph.roots))
    replayed = flops <= REPLAYED_FLOPS if replay is None else replay
    whole = flops * sum(len(e.steps) for e in found) <= WHOLE_FLOPS
    bounds = index_bounds(graph)
    return found, [check(e, rules, bounds=bounds, whole=whole) if replayed else None for e in found]


def explain_equality(a: Tensor, b: Tensor, *, limits: Limits | None = None) -> Explanation | None:
    """Why two expressions are equal: the rule applications that lead from the one to the other; None where the rules do
    not prove it within the limits. UsageError: their types differ."""
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
    """For every unique block of a model, the rules that lead from its original form to the one chosen at known prices.

    Each block is extracted by itself; the plan of the whole model may choose differently where blocks meet. Nothing is
    measured. Takes what `optimize` takes.
    """
    session = pipeline.Session(pipeline.Options(backend, limits=limits or Limits(), measure=False))
    graph = pipeline.as_graph(source, example_inputs, dims=dims, trust=trust)
    _, blocks, views = pipeline.saturated(session, pipeline.prepare(session, graph, dims).work)
    return list(_blocks(session, blocks, views, replay))


def _blocks(
    session: pipeline.Session, blocks: Blocks, views: Sequence[EGraphView], replay: bool | None
) -> Iterator[BlockRewrites]:
    backends = select(session.options.backend)
    with pipeline.open_store(session) as store:
        for number, (block, view) in enumerate(zip(blocks.unique, views)):
            found = pipeline.hypergraph(session, view, backends)
            choice = pipeline.choose(session, found, CostPricer(store), None)
            steps, checked = explain_choice(block.graph, view, choice, replay=replay)
            yield BlockRewrites(
                number, sum(i.block == number for i in blocks.instances), len(block.graph.nodes()), len(view),
                tuple(steps), tuple(checked),
            )  # fmt: skip


__all__ = ["BlockRewrites", "chosen_terms", "explain_choice", "explain_equality", "explain_rewrites"]
