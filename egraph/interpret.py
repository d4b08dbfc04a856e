"""The reference interpreter: what a graph means, node by node, in its own dtypes or in float64.

In float64 every float value is carried in float64 and float-to-float casts change nothing: the graph's real-valued
meaning up to double rounding. Values are freed after their last use, weights are loaded when first needed, and what a
product reads of a large one is widened piece by piece: the peak is the widest cut of live values, not the whole model,
and no weight is there a second time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from ..errors import UsageError
from . import dtypes
from .composite import expand
from .graph import Data, Graph, Tensor, load_data, make, topological

Array = np.ndarray[Any, Any]
Around = Callable[[Tensor, Sequence[Any], Callable[[Sequence[Any]], Any]], Any]


def expand_all(roots: Sequence[Tensor], *, wide_means: bool = False) -> list[Tensor]:
    """The roots with every composite replaced by its decomposition, to atomic ops only. `wide_means`: means of 16-bit floats are
    taken in float32, as libraries take them: sums of many elements are infinite in float16."""
    if not any(node.entry.composite for node in topological(roots)):
        return list(roots)
    done: dict[int, Tensor] = {}  # what is expanded stands for itself: a decomposition is walked to its operands only
    keep: list[Tensor] = []  # ids are dictionary keys: everything met stays alive until the end

    def walk(start: Sequence[Tensor]) -> None:
        for node in topological(start, done):
            if id(node) in done:
                continue
            args = tuple([done[id(a)] for a in node.args])
            same = all(a is b for a, b in zip(args, node.args))
            fresh = node if same else make(node.op, args, dict(node.attrs), data=node.data)
            if fresh.entry.composite:
                inner = _in_float32(fresh) if wide_means and fresh.op == "mean" else expand(fresh)
                walk([inner])
                fresh = done[id(inner)]
            done[id(node)] = done[id(fresh)] = fresh
            keep.extend((node, fresh))

    walk(list(roots))
    return [done[id(r)] for r in roots]


def _in_float32(mean: Tensor) -> Tensor:
    """A mean, taken in float32 where it is one of 16-bit floats."""
    (x,) = mean.args
    if x.dtype not in dtypes.HALVES:
        return expand(mean)
    wide = make("mean", (make("cast", (x,), {"dtype": "float32"}),), dict(mean.attrs))
    return make("cast", (wide,), {"dtype": mean.dtype})


def apply(node: Tensor, arrays: Sequence[Array], *, float64: bool = False, whole: bool = False) -> Array:
    """One atomic node on concrete operands. With `float64`, floats are float64 whatever the node's dtype says.

    `whole`: no product is computed in pieces, which may change the last bit."""
    attrs = dict(node.attrs)
    function = node.entry.numpy
    if function is None:
        raise UsageError(f"{node.op} has no value of its own", hint="bind its data")
    if node.op == "matmul" and not whole:
        x, w = arrays
        wide = _widened_to(x, w, float64)
        if wide is not None:
            return _matmul_in_pieces(x, w, wide).astype(wide if float64 else x.dtype, copy=False)
    if not float64:
        return np.asarray(function(attrs, *arrays))
    if "dtype" in attrs and dtypes.is_float(attrs["dtype"]):
        attrs["dtype"] = "float64"
    if node.op == "cast" and all(dtypes.is_float(d) for d in (attrs["dtype"], dtypes.name_of(arrays[0].dtype))):
        return arrays[0]
    if node.op in LAZY or node.entry.kind == "view":  # nothing is computed: the data may stay narrow
        return np.asarray(function(attrs, *arrays))
    return np.asarray(function(attrs, *map(_wide, arrays)))


#: Ops that only pick elements: in float64 they may work on narrow data, which is widened where it is first computed with.
LAZY = ("gather", "gather_elements")
CHUNK = 1 << 24  # bytes of a widened piece of a matrix; larger ones are widened piece by piece


def _wide(x: Array) -> Array:
    return x.astype(np.float64) if dtypes.is_float(dtypes.name_of(x.dtype)) and x.dtype != np.float64 else x


def _widened_to(x: Array, w: Array, float64: bool) -> type[np.floating[Any]] | None:
    """What a product with a large matrix, or a stack of them, is computed in, where that is wider than they are; else None."""
    wide: type[np.floating[Any]] = np.float64 if float64 else np.float32
    narrow = w.dtype != wide and all(dtypes.is_float(dtypes.name_of(a.dtype)) for a in (x, w))
    halves = x.dtype.itemsize == 2  # computed in float32 in their own dtype too
    stacked = w.ndim == 2 or (w.ndim > 2 and x.shape[:-2] == w.shape[:-2])
    large = w.size * np.dtype(wide).itemsize > CHUNK
    return wide if narrow and stacked and large and (float64 or halves) else None


def _matmul_in_pieces(x: Array, w: Array, wide: type[np.floating[Any]]) -> Array:
    """x @ w in a wider dtype, w never held in it as a whole: columns of a matrix, or of each matrix of a stack."""
    out = np.empty((*x.shape[:-1], w.shape[-1]), wide)
    step = max(1, CHUNK // (np.dtype(wide).itemsize * w.shape[-2]))
    room = np.empty_like(w[(0,) * (w.ndim - 2)][:, :step], wide)  # laid out as w is: reading goes along memory
    for at in np.ndindex(w.shape[:-2]):  # of a matrix: (), which picks all of x
        rows = x[at].astype(wide, copy=False)
        for start in range(0, w.shape[-1], step):
            read = w[at][:, start : start + step]
            piece = room[:, : read.shape[1]]
            np.copyto(piece, read, casting="unsafe")
            np.matmul(rows, piece, out=out[at][..., start : start + step])
    return out


def evaluate(
    graph: Graph | Sequence[Tensor],
    values: Mapping[str, Any],
    *,
    params: Mapping[str, Data] | None = None,
    float64: bool = False,
    whole: bool = False,
    poll: Callable[[], object] = lambda: None,
    around: Around | None = None,
) -> list[Array]:
    """The roots' values (outputs, then state updates). `values` gives inputs and states by name; `whole`: see `apply`; `poll` is
    called before each operation, and what it raises ends the run. `around` computes each operation in place of `apply`: from the
    node, its operands, and a function that computes it.

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
        poll()
        if node.is_leaf:
            live[id(node)] = _leaf(node, values, data)
        else:
            compute = partial(apply, node, float64=float64, whole=whole)
            operands = [live[id(a)] for a in node.args]
            live[id(node)] = compute(operands) if around is None else around(node, operands, compute)
            del operands
        for a in node.args:
            uses[id(a)] -= 1
            if not uses[id(a)]:
                live.pop(id(a), None)
    return [_wide(live[id(r)]) if float64 else live[id(r)] for r in roots]


def _leaf(node: Tensor, values: Mapping[str, Any], data: Mapping[str, Data]) -> Array:
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
    return array
