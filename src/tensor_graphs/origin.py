"""What a program was made from: the graph that was optimized and the terms that its kernels compute, kept beside it.

A file of `save_graph` in the program's folder, without the data of params: the roots of the graph, for each the chosen term in
the graph's own dtypes, and what kernels round when they store it in a narrower one (`extract/storage.py`). `explain --steps`
reads it to say which rules lead from the one to the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from .backends.program import Program
from .egraph import dtypes
from .egraph.graph import Graph, Tensor, topological
from .egraph.pattern import build
from .egraph.widen import as_dtype
from .errors import BadModelError, ShapeError, UsageError
from .extract.kernel import Plan
from .extract.sizes import bound_call, bound_terms
from .models.native import load_graph, save_graph

FILE = "origin.safetensors"
MOVES = frozenset(("view", "layout"))  # kinds of ops that compute no numbers
Terms = tuple[Tensor, ...]


@dataclass(frozen=True)
class Origin:
    """The roots of a graph, the term chosen for each, and values that are rounded where they are stored between kernels, as their
    casts to the dtype that they lie in: no step from a root to its term shows them."""

    roots: Terms
    chosen: Terms
    stored: Terms = ()

    @property
    def graph(self) -> Graph:
        """All terms as one graph; their names say what they are."""
        groups = (("root", self.roots), ("chosen", self.chosen), ("stored", self.stored))
        return Graph.of({f"{name} {i}": t for name, terms in groups for i, t in enumerate(terms)})


def origin_of(plan: Plan, work: Graph, sizes: Mapping[str, int] | None = None) -> Origin:
    """What a plan computes, beside the graph that it was made for: each kernel's pattern over the terms that it reads, in the
    dtypes that the graph has for them. `sizes`: those of `work`, where the plan's are free. ShapeError where they do not fit."""
    sizes = sizes or {}
    given = [*plan.graph.inputs, *plan.graph.leaves("state")]
    leaves = {str(t.attr("name")): t for t in bound_terms(given, sizes)}
    weights = dict(zip(plan.weights, bound_terms(list(plan.weights.values()), sizes), strict=True))
    made = {v: as_dtype(term, plan.values[v].carried or term.dtype) for v, term in weights.items()}
    made |= {v.id: leaves[v.name] for v in plan.values if v.origin in ("input", "state")}
    for step in plan.steps:
        operands = {o: made[i] for o, i in step.inputs}
        for value, term in zip(step.outputs, step.template.terms, strict=True):
            made[value] = build(term, operands, dict(bound_call(step.call, sizes).attrs))
    chosen = tuple(made[i] for i in (*plan.outputs, *plan.updates.values()))
    if [t.type for t in chosen] != [r.type for r in work.roots]:
        raise ShapeError("a plan's kernels compute values of other types than its graph")
    written = [(made[v.id], v.type.dtype) for v in plan.values if v.carried and v.origin in ("kernel", "weight")]
    stored = dict.fromkeys(as_dtype(term, dtype) for term, dtype in written if _rounds(term, dtype))
    shown = set(topological(chosen))  # what the graph itself rounds is in its terms
    return Origin(tuple(work.roots), chosen, tuple(t for t in stored if t not in shown))


def _rounds(term: Tensor, dtype: str) -> bool:
    """Whether a value holds other numbers than those of a dtype, moved."""
    todo = [term]
    while todo:
        t = todo.pop()
        if dtypes.is_float(t.dtype) and dtype not in (t.dtype, t.args[0].dtype if t.op == "cast" else ""):
            if t.entry.kind not in MOVES and t.op != "gather":
                return True
            todo += t.args
    return False


def attach(program: Program, work: Graph, sizes: Mapping[str, int] | None = None) -> None:
    """Have a program keep what it was made from; where that cannot be said, its report tells why."""
    if program.plan is None:
        return
    try:
        program.attached = partial(write_origin, origin=origin_of(program.plan, work, sizes))
    except ShapeError as error:
        said = f"the program's steps cannot be explained: {error.message}"
        if program.report is not None and said not in program.report.warnings:
            program.report.warnings.append(said)


def write_origin(folder: Path, origin: Origin) -> None:
    """Keep it beside a program."""
    save_graph(origin.graph, folder / FILE)


def read_origin(folder: Path) -> Origin:
    """What a program was made from. UsageError where it does not say so, BadModelError where the file is malformed."""
    if not (folder / FILE).is_file():
        raise UsageError(
            "this program does not say what it was made from: it was not made by a search, or is older",
            where=str(folder), hint="name the model that it was made from",
        )  # fmt: skip
    graph = load_graph(folder / FILE)
    groups: dict[str, list[Tensor]] = {"root": [], "chosen": [], "stored": []}
    for name, term in zip(graph.names, graph.outputs, strict=True):
        groups.setdefault(name.partition(" ")[0], []).append(term)
    found = Origin(*(tuple(terms) for terms in groups.values())) if len(groups) == 3 else None
    if found is None or not found.roots or [t.type for t in found.roots] != [t.type for t in found.chosen]:
        raise BadModelError("roots and chosen terms do not belong together", where=str(folder / FILE))
    if any(t.op != "cast" for t in found.stored):
        raise BadModelError("what is stored in another dtype is no cast", where=str(folder / FILE))
    return found


__all__ = ["FILE", "Origin", "attach", "origin_of", "read_origin", "write_origin"]
