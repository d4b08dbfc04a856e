"""The reference interpreter: what a graph means, node by node, in its own dtypes or in float64.

In float64 every float value is carried in float64 and float-to-float casts change nothing: the graph's real-valued
meaning up to double rounding. Values are freed after their last use, and weights are loaded when first needed, so the
peak is the widest cut of live values, not the whole model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import UsageError
from . import dtypes
from .composite import expand
from .graph import Data, Graph, Tensor, load_data, topological

Array = np.ndarray[Any, Any]


def expand_all(roots: Sequence[Tensor]) -> list[Tensor]:
    """The roots with every composite replaced by its decomposition, to atomic ops only."""
    done: dict[int, Tensor] = {}
    keep: list[Tensor] = []  # ids are dictionary keys: everything met stays alive until the end

    def walk(start: Sequence[Tensor]) -> None:
        for node in topological(start):
            if id(node) in done:
                continue
            keep.append(node)
            args = tuple(done[id(a)] for a in node.args)
            from .graph import make

            fresh = (
                node
                if all(a is b for a, b in zip(args, node.args))
                else make(node.op, args, dict(node.attrs), data=node.data)
            )
            if fresh.entry.composite:
                inner = expand(fresh)
                walk([inner])
                fresh = done[id(inner)]
            done[id(node)] = fresh
            keep.append(fresh)

    walk(list(roots))
    return [done[id(r)] for r in roots]


def apply(node: Tensor, arrays: Sequence[Array], *, float64: bool = False) -> Array:
    """One atomic node on concrete operands. With `float64`, floats are float64 whatever the node's dtype says."""
    attrs = dict(node.attrs)
    if float64 and "dtype" in attrs and dtypes.is_float(attrs["dtype"]):
        attrs["dtype"] = "float64"
    function = node.entry.numpy
    if function is None:
        raise UsageError(f"{node.op} has no value of its own", hint="bind its data")
    return np.asarray(function(attrs, *arrays))


def evaluate(
    graph: Graph | Sequence[Tensor],
    values: Mapping[str, Any],
    *,
    params: Mapping[str, Data] | None = None,
    float64: bool = False,
) -> list[Array]:
    """The roots' values (outputs, then state updates). `values` gives inputs and states by name.

    UsageError names leaves without data.
    """
    data: dict[str, Data] = dict(graph.params) if isinstance(graph, Graph) else {}
    data |= dict(params or {})
    roots = expand_all(graph.roots if isinstance(graph, Graph) else list(graph))
    order = topological(roots)
    uses: dict[int, int] = {}
    for node in order:
        for a in node.args:
            uses[id(a)] = uses.get(id(a), 0) + 1
    for root in roots:
        uses[id(root)] = uses.get(id(root), 0) + 1
    live: dict[int, Array] = {}
    for node in order:
        live[id(node)] = _leaf(node, values, data, float64) if node.is_leaf else apply(
            node, [live[id(a)] for a in node.args], float64=float64
        )  # fmt: skip
        for a in node.args:
            uses[id(a)] -= 1
            if not uses[id(a)]:
                live.pop(id(a), None)
    return [live[id(r)] for r in roots]


def _leaf(node: Tensor, values: Mapping[str, Any], data: Mapping[str, Data], float64: bool) -> Array:
    if node.op == "constant":
        assert node.data is not None
        array = node.data
    else:
        source = data if node.op == "param" else values
        name = node.attr("name")
        if name not in source:
            raise UsageError(f"no data for {node.op} {name!r} ({node.type})")
        array = load_data(source[name]) if node.op == "param" else np.asarray(source[name])
    if tuple(array.shape) != node.shape:
        raise UsageError(f"{node.attrs[0][1]!r} has shape {tuple(array.shape)}, not {node.shape}")
    return array.astype(np.float64) if float64 and dtypes.is_float(node.dtype) else array
