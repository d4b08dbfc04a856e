"""What a program was made from: the graph that was optimized and the terms that its kernels compute, kept beside it.

A file of `save_graph` in the program's folder, without the data of params: its outputs are the roots of the graph and then,
root by root, the chosen terms. `explain --steps` reads it to say which rules lead from the one to the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from .backends.program import Program
from .egraph.graph import Graph, Tensor
from .egraph.pattern import build
from .errors import BadModelError, ShapeError, UsageError
from .extract.kernel import Plan, Vertex
from .extract.plan import WeightTerms
from .extract.search import Choice
from .models.native import load_graph, save_graph

FILE = "origin.safetensors"


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


def planned_terms(plan: Plan) -> list[Tensor]:
    """The roots as the kernels of a plan compute them. ShapeError where values are stored in other dtypes than the graph's."""
    leaves = {str(t.attr("name")): t for t in (*plan.graph.inputs, *plan.graph.leaves("state"))}
    made: dict[int, Tensor] = {**plan.weights}
    made |= {v.id: leaves[v.name] for v in plan.values if v.origin in ("input", "state")}
    for step in plan.steps:
        operands = {o: made[i] for o, i in step.inputs}
        for value, term in zip(step.outputs, step.template.terms, strict=True):
            made[value] = build(term, operands, dict(step.call.attrs))
    return [made[i] for i in (*plan.outputs, *plan.updates.values())]


def origin_of(work: Graph, chosen: Sequence[Tensor]) -> Graph:
    """The graph of both: roots and chosen terms."""
    return Graph.of([*work.roots, *chosen])


def attach(program: Program, work: Graph) -> None:
    """Have a program keep what it was made from, as far as its plan says so: not for free sizes, nor where values are
    stored in other dtypes than the graph's."""
    plan = program.plan
    if plan is None or plan.sizes:
        return
    with suppress(ShapeError):
        chosen = planned_terms(plan)
        if [t.type for t in chosen] == [r.type for r in work.roots]:
            program.attached = partial(write_origin, origin=origin_of(work, chosen))


def write_origin(folder: Path, origin: Graph) -> None:
    """Keep it beside a program."""
    save_graph(origin, folder / FILE)


def read_origin(folder: Path) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    """The roots of the graph, and the chosen term of each. UsageError where the program has none, BadModelError where the
    file is malformed."""
    if not (folder / FILE).is_file():
        raise UsageError(
            "this program does not say what it was made from: it has free sizes, stores values in other dtypes than its "
            "graph, was not made by a search, or is older",
            where=str(folder), hint="name the model that it was made from",
        )  # fmt: skip
    outputs = load_graph(folder / FILE).outputs
    half, odd = divmod(len(outputs), 2)
    roots, chosen = outputs[:half], outputs[half:]
    if odd or [t.type for t in roots] != [t.type for t in chosen]:
        raise BadModelError("roots and chosen terms do not belong together", where=str(folder / FILE))
    return roots, chosen


__all__ = ["attach", "chosen_terms", "origin_of", "planned_terms", "read_origin", "write_origin"]
