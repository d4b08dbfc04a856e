"""Saves with a program where it comes from: the graph that was optimized, and the terms that its kernels compute.

Stored in the program's folder in the format of `save_graph`, without parameter data: the roots of the graph, for each
the chosen term in the graph's own dtypes, and the values that kernels round when storing them in a narrower dtype
(`extract/model/storage_dtypes.py`). `explain --steps` derives the rule applications from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ...backends.program.program import Program
from ...egraph.ir.graph import Graph
from ...egraph.ir.tensor import Tensor, topological
from ...egraph.patterns.pattern import build
from ...egraph.simplify.widen import as_dtype
from ...egraph.types import dtypes
from ...errors import BadModelError, ShapeError, UsageError
from ...extract.model.plan import Plan
from ...extract.model.sizes import bound_call, bound_terms
from ...models.files.native import load_graph, save_graph

FILE = "origin.safetensors"
MOVES = frozenset(("view", "layout"))  # kinds of ops that compute no arithmetic
Terms = tuple[Tensor, ...]


@dataclass(frozen=True)
class Origin:
    """Provenance of a program: roots of the graph, the term chosen for each, and the values that kernels round when
    storing them.

    `stored` holds each such value as a cast to its storage dtype, because no rewrite step shows this rounding.
    """

    roots: Terms
    chosen: Terms
    stored: Terms = ()

    @property
    def graph(self) -> Graph:
        """All terms as one graph, with outputs named "root i", "chosen i", "stored i"."""
        groups = (("root", self.roots), ("chosen", self.chosen), ("stored", self.stored))
        return Graph.of({f"{name} {i}": t for name, terms in groups for i, t in enumerate(terms)})


def origin_of(plan: Plan, work: Graph, sizes: Mapping[str, int] | None = None) -> Origin:
    """Terms that a plan's kernels compute, in the graph's dtypes, beside the roots of the graph `work`.

    `sizes`: sizes of `work` if the plan's dimensions are free. Raises ShapeError if the terms' types do not match.
    """
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
    shown = set(topological(chosen))  # rounding that the graph itself contains is in its terms
    return Origin(tuple(work.roots), chosen, tuple(t for t in stored if t not in shown))


def _rounds(term: Tensor, dtype: str) -> bool:
    """Whether storing a value in a dtype rounds numbers; False if it only moves numbers of that dtype."""
    todo = [term]
    while todo:
        t = todo.pop()
        if dtypes.is_float(t.dtype) and dtype not in (t.dtype, t.args[0].dtype if t.op == "cast" else ""):
            if t.entry.kind not in MOVES and t.op != "gather":
                return True
            todo += t.args
    return False


def attach(program: Program, work: Graph, sizes: Mapping[str, int] | None = None) -> None:
    """Attach the provenance (original graph `work` and chosen terms) to a program, to be saved with it; on failure add
    a warning to its report. `sizes`: values of the plan's free dimensions."""
    if program.plan is None:
        return
    try:
        program.attached = partial(write_origin, origin=origin_of(program.plan, work, sizes))
    except ShapeError as error:
        warning = f"the program's steps cannot be explained: {error.message}"
        if program.report is not None and warning not in program.report.warnings:
            program.report.warnings.append(warning)


def write_origin(folder: Path, origin: Origin) -> None:
    """Write the provenance file to a program's folder."""
    save_graph(origin.graph, folder / FILE)


def read_origin(folder: Path) -> Origin:
    """Read a program's provenance. Raises UsageError if it has none, BadModelError if the file is malformed."""
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
        raise BadModelError("a value stored in another dtype is not a cast", where=str(folder / FILE))
    return found


__all__ = ["FILE", "Origin", "attach", "origin_of", "read_origin", "write_origin"]
