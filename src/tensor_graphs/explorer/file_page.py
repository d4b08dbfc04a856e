"""Makes the viewer page of an e-graph file: one written by `saturate`, or any e-graph in the egraph-serialize
format."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..egraph.explain.explain import Explanation, classes_of, explain
from ..egraph.ir.graph import Graph
from ..egraph.view.view import EGraphView
from ..errors import ExtractionError
from ..extract.solve.extraction import Extraction
from ..extract.solve.problem import Problem, reachable
from ..extract.solve.solve import solve
from ..rules import ALL
from .chosen_terms import chosen_terms
from .derivations import derivations
from .egraph_file import GIVEN, JOINED, PART, SOURCES, EGraphFile, read
from .page import problem_page, rewrite_columns
from .tables import LONGEST_TEXT, Columns, lists, model_tables, rule_texts, view_tables

SOLVE_SECONDS = 5.0
NO_SOURCES = "From a file: kernels have no source text here, and no what-if answers (tg.saturate(...).html() has)."
NO_RULES = "No rewrites are shown: the file holds no record of tensor_graphs, thus neither rules nor the model."
_OPERAND = re.compile(r"(\w+)=(c\d+(?:@-?\d+(?:,-?\d+)*)?)")


def file_page(path: str | Path, roots: Sequence[str] = ()) -> str:
    """The viewer page of an e-graph file. `roots`: the classes to extract instead of the file's.

    Raises ExtractionError if it is malformed, BadModelError without its model.
    """
    found = read(path, roots)
    solution = solve(found.problem, time_limit=SOLVE_SECONDS)
    if found.record is not None:
        columns, facts, notes = _own_tables(found, solution)
    else:
        (columns, facts), notes = _plain_tables(found, solution), [NO_RULES]
    bound = "proven optimal" if solution.optimal else f"proven bound {solution.lower_bound:.6g}"
    meta = {
        "title": Path(path).name, "unit": "µs" if found.record is not None else "",
        "facts": [*facts, f"best {solution.cost:.6g}{' µs' if found.record is not None else ''}", bound],
        "notes": notes,
    }  # fmt: skip
    return problem_page(columns, meta)


def _plain_tables(found: EGraphFile, solution: Extraction) -> tuple[Columns, list[str]]:
    """Tables and notes of an e-graph that `saturate` did not write: each e-node with its cost stands for a kernel as
    well.
    """
    problem, n = found.problem, found.problem.n_nodes
    root = np.zeros(problem.n_classes, np.bool_)
    root[list(problem.roots)] = True
    every = np.arange(n, dtype=np.int32)
    columns: Columns = {
        "class.type": [problem.class_name(c)[:LONGEST_TEXT] for c in range(problem.n_classes)], "class.root": root,
        "class.weight": np.zeros(problem.n_classes, np.bool_),
        "node.class": problem.cls, "node.op": [op[:LONGEST_TEXT] for op in found.ops], "node.name": [""] * n,
        "node.attrs": [""] * n, "node.kid.off": problem.off, "node.kid.item": problem.child, "node.own": np.zeros(n, np.bool_),
        "node.rule": [""] * n, "node.rules": [""] * n, "node.from": np.full(n, -1, np.int32),
        "place.class": np.arange(problem.n_classes, dtype=np.int32), "place.layout": [""] * problem.n_classes,
        "kernel.name": [op[:LONGEST_TEXT] for op in found.ops], "kernel.backend": [""] * n, "kernel.computes": [""] * n,
        "kernel.us": problem.cost, "kernel.low": problem.cost, "kernel.high": problem.cost, "kernel.price": ["cost"] * n,
        "kernel.step": _steps(problem, solution),
        "kernel.out.off": np.arange(n + 1, dtype=np.int32), "kernel.out.item": problem.cls,
        "kernel.in.off": problem.off, "kernel.in.item": problem.child,
        "kernel.node.off": np.arange(n + 1, dtype=np.int32), "kernel.node.item": every,
    }  # fmt: skip
    return columns, [f"{n:,} e-nodes", f"{problem.n_classes:,} e-classes"]


def _steps(problem: Problem, solution: Extraction) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Position of each chosen node in the solution, operands first; -1 for the others."""
    steps = np.full(problem.n_nodes, -1, np.int32)
    chosen = reachable(problem, solution.choice)
    steps[chosen] = np.arange(len(chosen), dtype=np.int32)
    return steps


def _own_tables(found: EGraphFile, solution: Extraction) -> tuple[Columns, list[str], list[str]]:
    """Tables, facts and notes of a file that `saturate` wrote: the algebraic e-graph, its kernels by name, the
    rewriting."""
    assert found.record is not None
    view, graph = found.view(found.record)
    layers = _object(found.record, "layers", str, str(found.path))
    modules = {t: layers[str(c)] for t, c in classes_of(view, graph.roots).items() if str(c) in layers}
    rules: dict[int, list[str]] = {}
    start: dict[int, int] = {}
    for d in derivations(view):
        for node in d.made:
            if d.rule not in rules.setdefault(node, []):
                rules[node].append(d.rule)
            start.setdefault(node, d.left[0])
    columns = view_tables(view, rules, start) | _kernels(found, solution, len(view), view.n_classes)
    facts = [f"{len(view):,} e-nodes", f"{view.n_classes:,} e-classes", f"{len(columns['kernel.name']):,} kernels"]
    columns |= rule_texts(name for names in rules.values() for name in names) | model_tables(graph, view, modules)
    steps, why = rewrite_columns(len(view), lambda: _rewriting(view, graph, columns))
    return columns | steps, facts, [NO_SOURCES, *why]


def _rewriting(view: EGraphView, graph: Graph, columns: Columns) -> list[Explanation]:
    """Rule applications from the model to the terms that the kernels of the solution compute."""
    step, off, item = (np.asarray(columns[f"kernel.{name}"]) for name in ("step", "node.off", "node.item"))
    order = sorted(np.flatnonzero(step >= 0).tolist(), key=lambda k: int(step[k]))
    chosen = chosen_terms(view, [item[off[k] : off[k + 1]].tolist() for k in order])
    return explain(view, [d for r in ALL for d in r.directions], graph.roots, chosen)


def _kernels(found: EGraphFile, solution: Extraction, nodes: int, classes: int) -> Columns:
    problem, record, where = found.problem, found.record or {}, str(found.path)
    kept = [n for n in range(problem.n_nodes) if found.ops[n] not in (GIVEN, PART)]
    places: dict[str, int] = {}
    outs, ins, covers, limits, prices = [], [], [], [], []
    computes, bounds = _object(record, "computes", list, where), _object(record, "limits", float, where)
    for n in kept:
        made, read_ = problem.class_name(int(problem.cls[n])).split(JOINED), _OPERAND.findall(found.ops[n])
        name = problem.node_name(n)
        outs.append([places.setdefault(p, len(places)) for p in made])
        ins.append([places.setdefault(p, len(places)) for _, p in read_])
        covers.append([_index(x, nodes, where) for x in computes.get(name, [])])
        price = record.get("sources", {}).get(name, "")
        limits.append(bounds.get(name, math.nan))
        prices.append(price if price in SOURCES else "unknown")
    steps = _steps(problem, solution)
    order = {int(n): i for i, n in enumerate(sorted((n for n in kept if steps[n] >= 0), key=lambda n: steps[n]))}
    names = [found.ops[n].partition("(")[0] for n in kept]
    cost = problem.cost[kept]
    return {
        "place.class": np.array([_index(p[1:].partition("@")[0], classes, where) for p in places], np.int32),
        "place.layout": [p.partition("@")[2] for p in places],
        "kernel.name": names, "kernel.backend": [n.partition(".")[0] for n in names],
        "kernel.view": np.array([n.startswith("view.") for n in names], np.bool_),
        "kernel.computes": [found.ops[n][:LONGEST_TEXT] for n in kept],
        "kernel.us": cost, "kernel.low": cost, "kernel.high": cost, "kernel.price": prices,
        "kernel.limit": np.array(limits, np.float64), "kernel.step": np.array([order.get(n, -1) for n in kept], np.int32),
        **lists("kernel.out", outs), **lists("kernel.in", ins), **lists("kernel.node", covers),
    }  # fmt: skip


def _object(record: Mapping[str, Any], name: str, kind: type, where: str) -> Mapping[str, Any]:
    """A member of the record that maps names to values of one type. Raises ExtractionError if it is something else."""
    found = record.get(name, {})
    if not isinstance(found, Mapping) or not all(type(v) is kind for v in found.values()):
        raise ExtractionError(f"{name} must be an object of {kind.__name__} values", where=where)
    return found


def _index(value: Any, limit: int, where: str) -> int:
    """An index below `limit`, as int or digits. Raises ExtractionError otherwise."""
    number = int(value) if isinstance(value, str) and value.isdecimal() and len(value) < 10 else value
    if type(number) is not int or not 0 <= number < limit:
        raise ExtractionError(f"{str(value)[:40]!r} is no index below {limit}", where=where)
    return number


__all__ = ["file_page"]
