"""A smaller graph that fails in the same way: fewer outputs, and values cut off that become inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

import tensor_graphs as tg
from tensor_graphs.egraph.evaluate.interpret import evaluate
from tensor_graphs.egraph.ir.tensor import Tensor, make
from tensor_graphs.egraph.types import dtypes

from .graphs import Case, case


def replaced(one: Case, node: Tensor, new: Tensor, inputs: dict[str, np.ndarray]) -> Case:
    """The graph with one value in another's place."""
    done: dict[Tensor, Tensor] = {node: new}
    for n in one.graph.nodes():
        if n not in done:
            args = [done[a] for a in n.args]
            done[n] = n if all(a is b for a, b in zip(args, n.args)) else make(n.op, args, dict(n.attrs), data=n.data)
    roots = list(dict.fromkeys(done[r] for r in one.graph.outputs))
    return case(roots, {**one.inputs, **inputs}, dict(one.graph.params))  # type: ignore[arg-type]


def smaller(one: Case) -> Iterator[Case]:
    """Graphs with less in them, those with the least first."""
    params = dict(one.graph.params)
    outputs = list(one.graph.outputs)
    ends = set(outputs)  # membership in a list would compare elements
    if len(outputs) > 1:
        for r in outputs:
            yield case([r], one.inputs, params)  # type: ignore[arg-type]
    inner = [n for n in one.graph.nodes() if n.args]
    for n in inner:
        if n not in ends or len(outputs) > 1:
            yield case([n], one.inputs, params)  # type: ignore[arg-type]
    for n in reversed(inner):
        for a in n.args:
            if a.type == n.type and not (n in ends and a.is_leaf):
                yield replaced(one, n, a, {})
    for n in reversed(inner):
        if n not in ends:
            name = f"c{len(one.inputs)}"
            while name in one.inputs:
                name += "_"
            with np.errstate(all="ignore"):
                value = evaluate([n], one.inputs, params=params)[0]
            array = np.array(value).astype(dtypes.numpy_dtype(n.dtype))
            yield replaced(one, n, tg.input(name, n.shape, n.dtype), {name: array})
    for n in one.graph.nodes():
        if n.op in ("constant", "param"):
            name = f"d{len(one.inputs)}"
            array = n.data if n.op == "constant" else params[str(n.attr("name"))]
            yield replaced(one, n, tg.input(name, n.shape, n.dtype), {name: np.asarray(array)})


def size(one: Case) -> tuple[int, int, int]:
    """What shrinking makes smaller."""
    nodes = one.graph.nodes()
    return len(one.graph.outputs), sum(bool(n.args) for n in nodes), sum(n.op in ("constant", "param") for n in nodes)


def shrunk(one: Case, fails: Callable[[Case], bool], tries: int = 200) -> Case:
    """The smallest graph found that still fails."""
    again = True
    while again and tries > 0:
        again = False
        for other in smaller(one):
            if size(other) >= size(one):
                continue
            tries -= 1
            if fails(other):
                one, again = other, True
                break
            if tries <= 0:
                break
    return one


__all__ = ["shrunk"]
