"""Random small graphs with concrete sizes > 0, and their data, for the tests of lowering and saturation."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tensor_graphs.egraph import api as t
from tensor_graphs.egraph import composite as c
from tensor_graphs.egraph import dtypes
from tensor_graphs.egraph.dims import concrete, volume
from tensor_graphs.egraph.graph import Graph, Tensor

SIZES = (1, 2, 3, 4)
Draw = Callable[[st.SearchStrategy[Any]], Any]


def _leaf(draw: Draw, number: int, shape: tuple[int, ...]) -> Tensor:
    kind = draw(st.sampled_from(("input", "param", "constant", "full", "iota")))
    if kind == "input":
        return t.input(f"x{number}", shape)
    if kind == "param":
        return t.param(f"p{number}", shape)
    if kind == "constant":
        return t.constant(np.linspace(0.5, 1.5, math.prod(shape), dtype=np.float32).reshape(shape))
    if kind == "iota" and shape:
        return t.iota(shape, draw(st.integers(0, len(shape) - 1)), "float32")
    return t.full(shape, draw(st.sampled_from((0.0, 1.0, 2.0, -1.0, 0.5))))


def _unary(draw: Draw, x: Tensor) -> Tensor:
    rank = x.rank
    axis = draw(st.integers(0, max(rank - 1, 0)))
    step: list[Callable[[], Tensor]] = [
        lambda: -x,
        lambda: t.tanh(x),
        lambda: t.exp(t.minimum(x, 1.0)),
        lambda: c.relu(x),
        lambda: t.cast(t.cast(x, "float64"), "float32"),
        lambda: t.where(t.lt(x, 0.5), x, x * 2.0),
        lambda: t.reshape(x, (1, *x.shape)) if rank < 4 else x,
        lambda: t.reshape(x, (volume(x.shape),)),
    ]
    if rank:
        size = x.shape[axis]
        assert isinstance(size, int)
        start = draw(st.integers(0, size - 1))
        stop = draw(st.integers(start + 1, size))
        step += [
            lambda: t.sum(x, axis, True),
            lambda: t.max(x, axis, True),
            lambda: t.mean(x, axis, True),
            lambda: t.cumsum(x, axis),
            lambda: t.flip(x, axis),
            lambda: t.slice_axis(x, axis, start, stop),
            lambda: t.permute(x, draw(st.permutations(range(rank)))),
            lambda: t.pad(x, [(1, 2) if i == axis else (0, 0) for i in range(rank)], 0.5),
            lambda: t.windows(x, axis, stop - start),
            lambda: c.softmax(x, axis=axis),
            lambda: t.cast(t.argmax(x, axis, True), "float32"),
            lambda: t.broadcast_to(t.sum(x, axis, True), x.shape),
            lambda: t.gather(x, t.constant(np.zeros((2, 1), np.int64)), axis),
        ]
    found = draw(st.sampled_from(step))()
    return found if found.rank <= 4 else x


def _binary(draw: Draw, x: Tensor, y: Tensor) -> Tensor:
    choices: list[Callable[[], Tensor]] = []
    if x.rank == y.rank and all(p == q or 1 in (p, q) for p, q in zip(x.shape, y.shape)):
        choices += [lambda: x + y, lambda: x * y, lambda: x - y, lambda: t.maximum(x, y)]
    for axis in range(x.rank if x.rank == y.rank else 0):
        if all(p == q for i, (p, q) in enumerate(zip(x.shape, y.shape)) if i != axis):
            choices.append(lambda axis=axis: t.concat([x, y], axis))  # type: ignore[misc]
    if x.rank >= 2 and y.rank == 2 and x.shape[-1] == y.shape[0]:
        choices.append(lambda: t.matmul(x, y))
    if x.rank >= 3 and x.rank == y.rank and x.shape[-1] == y.shape[-2] and x.shape[:-2] == y.shape[:-2]:
        choices.append(lambda: t.matmul(x, y))
    return draw(st.sampled_from(choices))() if choices else x


@st.composite
def graphs(draw: Draw, *, steps: int = 8, outputs: int = 2) -> Graph:
    """A graph of a few leaves and operations; all shapes have at most 4 axes of at most 12."""
    shape = tuple(draw(st.lists(st.sampled_from(SIZES), min_size=1, max_size=3)))
    values = [t.input("x", shape), t.param("w", shape)]
    values += [_leaf(draw, i, shape) for i in range(draw(st.integers(0, 2)))]
    if len(shape) >= 2:
        values += [t.param(f"m{i}", (shape[-1], shape[-1])) for i in range(2)]
    for _ in range(draw(st.integers(1, steps))):
        x, y = draw(st.sampled_from(values)), draw(st.sampled_from(values))
        made = _binary(draw, x, y) if draw(st.booleans()) else _unary(draw, x)
        if math.prod(concrete(made.shape)) <= 256:
            values.append(made)
    return Graph.of([values[-1], *values[-2 : -outputs - 1 : -1]])


def data(graph: Graph, seed: int = 0) -> tuple[dict[str, Any], dict[str, Any]]:
    """(inputs and states, params) in float64, in a range where nothing overflows."""
    rng = np.random.default_rng(seed)

    def draw(n: Tensor) -> np.ndarray[Any, Any]:
        return np.asarray(rng.uniform(-1.5, 1.5, concrete(n.shape))).astype(dtypes.numpy_dtype(n.dtype))

    values = {n.attr("name"): draw(n) for op in ("input", "state") for n in graph.leaves(op)}
    return values, {n.attr("name"): draw(n) for n in graph.leaves("param")}
