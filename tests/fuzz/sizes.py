"""Programs for every size: a graph that was grown at two sizes no other number equals, written in free ones, searched
at some and run at others."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np

import tensor_graphs as tg
from tensor_graphs.backends.verification.index_bounds import index_bounds
from tensor_graphs.egraph.evaluate.interpret import evaluate
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.ir.tensor import Tensor, make
from tensor_graphs.egraph.types.dims import Dim, dim
from tensor_graphs.errors import ShapeError, TensorGraphsError, UsageError
from tensor_graphs.pipeline.execution.run_program import run_flat
from tensor_graphs.verification.reference import sample_inputs

from .checks import SEEN, own_text
from .graphs import Case
from .oracle import Oracle, coarsest

N, M = dim("n", max=64), dim("m", max=64)
GROWN = {"n": 7, "m": 11}
WRITTEN: dict[int, Dim] = {
    7: N, 11: M, 77: N * M, 14: 2 * N, 22: 2 * M, 21: 3 * N, 33: 3 * M, 18: N + M, 8: N + 1, 12: M + 1, 9: N + 2, 13: M + 2,
    6: N - 1, 10: M - 1, 154: N * M * 2, 231: N * M * 3, 49: N * N, 121: M * M, 28: N * 4, 44: M * 4, 35: N * 5, 55: M * 5,
}  # fmt: skip
AT = ((7, 11), (5, 6), (1, 1), (2, 3), (16, 17), (33, 8), (1, 9), (12, 12))


def freed(one: Case) -> Graph | None:
    """The graph in free sizes; None where a number is a size by chance, or no size is free."""

    def free(value: Any) -> Any:
        return WRITTEN.get(value, value) if isinstance(value, int) and not isinstance(value, bool) else value

    done: dict[Tensor, Tensor] = {}
    for n in one.graph.nodes():
        kinds = n.entry.attrs
        attrs = {
            k: tuple(map(free, v)) if k in ("shape",) else free(v) if k in ("start", "stop") else v
            for k, v in n.attrs
            if k in kinds
        }
        if n.op in ("param", "constant") and attrs["shape"] != n.shape:
            return None
        try:
            done[n] = make(n.op, [done[a] for a in n.args], attrs, data=n.data)
        except (ShapeError, TypeError, ValueError):
            return None
    graph = Graph.of([done[r] for r in one.graph.outputs], params=dict(one.graph.params))
    if not graph.free_dims:
        return None
    there = graph.bind({n: s for n, s in GROWN.items() if n in graph.free_dims})
    return graph if all(a is b for a, b in zip(there.outputs, one.graph.outputs)) else None


def sizes(one: Case, rng: random.Random) -> str:
    """One program for all sizes computes at each what the graph means there."""
    graph = freed(one)
    if graph is None:
        return ""
    names = list(graph.free_dims)
    searched = {n: s for n, s in zip(("n", "m"), rng.choice(AT)) if n in names}
    if not means(graph, searched):
        searched = {n: GROWN[n] for n in names}
    backend = rng.choice(("numpy", "torch", "c", "auto"))
    exact = rng.random() < 0.15
    more: dict[str, Any] = {"tolerance": "exact"} if exact else {}
    made = tg.optimize(graph, dims=searched, measure=False, verify=rng.random() < 0.3, budget=20.0,
                       backend="numpy" if exact else backend, limits=tg.Limits(nodes=1200, iterations=4, seconds=4.0), **more)  # fmt: skip
    fixed = [w for w in made.report.warnings if "one size only" in w]
    SEEN["programs for one size" if fixed else "programs for every size"] += 1
    for pair in AT:
        there = {n: s for n, s in zip(("n", "m"), pair) if n in names}
        if fixed:
            there = searched
        if message := at(graph, there, made, exact):
            return f"{backend} searched at {searched}, at {there}: {message}\n{own_text(made.source)}"
        if fixed:
            break
    return ""


def means(graph: Graph, there: Mapping[str, int]) -> bool:
    """Whether the graph has a value at one choice of sizes: shapes that fit, places that exist."""
    try:
        bound = graph.bind(dict(there))
        values = sample_inputs(bound.inputs, np.random.default_rng(1), index_bounds(bound))
        with np.errstate(all="ignore"):
            evaluate(bound, values)
    except (ShapeError, UsageError, IndexError):
        return False
    return all(0 not in n.shape for n in bound.nodes())


def at(graph: Graph, there: Mapping[str, int], made: Any, exact: bool) -> str:
    """What is wrong at one choice of sizes."""
    if not means(graph, there):
        return ""
    bound = graph.bind(dict(there))
    values = sample_inputs(bound.inputs, np.random.default_rng(1), index_bounds(bound))
    oracle = Oracle(bound.outputs, {**values, **graph.params}, dtype=coarsest(bound.nodes()))
    SEEN["sizes run"] += 1
    try:
        with np.errstate(all="ignore"):
            found = run_flat(made, values)
    except ShapeError as error:  # refused: beyond the range in which the graph means something without a gap
        return "" if "outside" in str(error) else str(error)
    except TensorGraphsError as error:
        return f"{type(error).__name__}: {error}"
    return oracle.wrong(found)
