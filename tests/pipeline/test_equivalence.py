"""Programs that the rules prove equal, and programs that they must not."""

from __future__ import annotations

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.egraph.builders import builders as t
from tensor_graphs.egraph.composites import composite_ops as composite
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.ir.tensor import make
from tensor_graphs.errors import ShapeError, UsageError

X, Y, W = tg.input("x", (3, 4)), tg.input("y", (3, 4)), tg.param("w", (4, 5))


def test_expressions() -> None:
    assert tg.equivalent((X + Y) @ W, Y @ W + X @ W)
    assert tg.equivalent((X @ W).T, W.T @ X.T)
    assert not tg.equivalent(X @ W + Y @ W, X @ W - Y @ W)
    assert not tg.equivalent(X, Y)


def test_the_proof_may_meet_in_the_middle() -> None:
    """Neither side turns into the other by collecting alone."""
    columns = lambda a, b: t.concat([a, b], 1)
    assert tg.equivalent(columns(X, Y) * 2.0 + columns(Y, X), columns(X * 2.0 + Y, Y * 2.0 + X))


def test_outputs_are_compared_in_order() -> None:
    assert tg.equivalent([X + Y, X * Y], [Y + X, Y * X])
    assert not tg.equivalent([X + Y, X * Y], [Y * X, Y + X])
    assert not tg.equivalent([X + Y, X * Y], [Y + X])
    assert not tg.equivalent(X, tg.input("z", (4,)))


def test_functions_share_inputs_by_position() -> None:
    example = (np.zeros((3, 4), np.float32), np.zeros((3, 4), np.float32))
    assert tg.equivalent(lambda x, y: x * 2.0 + y, lambda a, b: b + a + a, example)
    assert not tg.equivalent(lambda x, y: x - y, lambda y, x: x - y, example)


def test_a_composite_is_its_parts() -> None:
    e = t.exp(X - t.max(X, 1, True))
    assert tg.equivalent(composite.softmax(X, axis=1), e / t.sum(e, 1, True))
    assert tg.equivalent(composite.silu(X), X / (t.exp(-X) + 1.0))


def test_a_pointwise_convolution_is_a_product() -> None:
    x, w = tg.input("x", (2, 3, 4, 5)), tg.param("w", (6, 3, 1, 1))
    conv = make("conv", (x, w), {"strides": (1, 1), "pads": (0,) * 4, "dilations": (1, 1), "groups": 1})
    product = t.reshape(w, (1, 6, 3)) @ t.reshape(x, (2, 3, 20))
    assert tg.equivalent(conv, t.reshape(product, (2, 6, 4, 5)))


def test_params_with_different_data_are_not_the_same() -> None:
    one, other = np.ones((4, 5), np.float32), np.zeros((4, 5), np.float32)
    graph = lambda data: Graph.of(X @ W, params={"w": data})
    assert tg.equivalent(graph(one), graph(one.copy()))
    assert not tg.equivalent(graph(one), graph(other))


def test_leaves_of_one_name_and_other_types_are_not_the_same() -> None:
    x = tg.input("x", (4, 3))
    assert not tg.equivalent(X, t.permute(x, (1, 0)))
    assert not tg.equivalent([X, X + X], [t.permute(x, (1, 0)), t.permute(x + x, (1, 0))])


def test_new_values_of_states_are_compared() -> None:
    state = t.state("s", (3, 4))
    graph = lambda new: Graph.of(X, updates={"s": new})
    assert tg.equivalent(graph(state + X), graph(X + state))
    assert not tg.equivalent(graph(state + X), graph(state - X))
    assert not tg.equivalent(graph(state + X), Graph.of(X))


def test_limits_are_kept() -> None:
    assert not tg.equivalent((X + Y) @ W, Y @ W + X @ W, limits=tg.Limits(iterations=0))
    assert not tg.equivalent((X + Y) @ W, Y @ W + X @ W, limits=tg.Limits(seconds=0.0))


def test_free_sizes_must_be_given() -> None:
    n = tg.dim("n")
    a, b = (tg.input(name, (n, 4)) for name in "ab")
    with pytest.raises(ShapeError, match="free"):
        tg.equivalent(a + b, b + a)
    assert tg.equivalent(a + b, b + a, dims={"n": 3})


def test_what_is_no_program_is_named() -> None:
    with pytest.raises(UsageError, match="int"):
        tg.equivalent(X, 3)
