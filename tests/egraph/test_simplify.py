"""Simplifying keeps the meaning (bit by bit where asked), ends at a fixpoint, and takes the steps it promises."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensor_graphs.egraph.builders import builders as t
from tensor_graphs.egraph.composites import composite_ops as c
from tensor_graphs.egraph.composites import quantized_ops
from tensor_graphs.egraph.evaluate.interpret import evaluate
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.ir.tensor import Tensor, constant, make
from tensor_graphs.egraph.simplify.casts import lossless
from tensor_graphs.egraph.simplify.jumps import deciding
from tensor_graphs.egraph.simplify.simplify import simplify
from tensor_graphs.egraph.types.dims import dim
from tensor_graphs.egraph.types.dtypes import category, numpy_dtype

from ..examples import examples

X = t.input("x", (2, 3, 4))
I = t.input("i", (2, 3), "int32")
NUMBERS = (0.0, -0.0, 1.0, -1.0, 2.0, 0.5, 3.0, 0.25, 4.0, -4.0)
DIVISORS = (0.0, 1.0, -1.0, 2.0, 0.5, -4.0)  # exact, so that comparisons and floors fall the same way


def only(x: Tensor, **options: Any) -> Tensor:
    return simplify(Graph.of(x), **options).outputs[0]


# ---------------------------------------------------------------- random graphs
def _broadcastable(draw: Any, pool: list[Tensor], x: Tensor) -> Tensor | float:
    fits = [y for y in pool if y.dtype == x.dtype and y.rank == x.rank
            and all(1 in (a, b) or a == b for a, b in zip(x.shape, y.shape))]  # fmt: skip
    return draw(st.one_of(st.sampled_from(fits), st.sampled_from(NUMBERS)))


def _axis(draw: Any, x: Tensor) -> int:
    return draw(st.integers(0, x.rank - 1))


def _binary(draw: Any, pool: list[Tensor], x: Tensor) -> Tensor:
    y = _broadcastable(draw, pool, x)
    f = draw(st.sampled_from((t.add, t.sub, t.mul, t.maximum, t.minimum)))
    return f(x, y) if draw(st.booleans()) else f(y, x)


def _divided(draw: Any, pool: list[Tensor], x: Tensor) -> Tensor:
    return x / draw(st.sampled_from(DIVISORS))


def _unary(draw: Any, pool: list[Tensor], x: Tensor) -> Tensor:
    return draw(st.sampled_from((t.neg, t.abs, t.floor, t.sign, c.relu)))(x)


def _chosen(draw: Any, pool: list[Tensor], x: Tensor) -> Tensor:
    y = _broadcastable(draw, pool, x)
    condition = draw(st.sampled_from((x > 0, x <= y, t.logical_not(x < y), t.full((1,) * x.rank, True, "bool"))))
    return t.where(condition, x, y)


def _reshaped(draw: Any, pool: list[Tensor], x: Tensor) -> Tensor:
    sizes: list[Any] = list(x.shape)
    draw(st.sampled_from((lambda: sizes.insert(_axis(draw, x), 1), sizes.reverse, lambda: sizes.append(1))))()
    if draw(st.booleans()) and len(sizes) > 1:
        sizes[:2] = [sizes[0] * sizes[1]]
    return t.reshape(x, sizes) if len(sizes) < 5 else t.reshape(x, (-1, 1) if 0 not in x.shape else x.shape)


def _permuted(draw: Any, pool: list[Tensor], x: Tensor) -> Tensor:
    return t.permute(x, draw(st.permutations(range(x.rank))))


def _sliced(draw: Any, pool: list[Tensor], x: Tensor) -> Tensor:
    axis = _axis(draw, x)
    size: int = x.shape[axis]  # type: ignore[assignment]
    start = draw(st.integers(0, size))
    return t.slice_axis(x, axis, start, draw(st.integers(start, size)), draw(st.integers(1, 3)))


def _joined(draw: Any, pool: list[Tensor], x: Tensor) -> Tensor:
    axis = _axis(draw, x)
    fits = [y for y in pool if y.dtype == x.dtype and y.rank == x.rank
            and all(a == b or i == axis for i, (a, b) in enumerate(zip(x.shape, y.shape)))]  # fmt: skip
    return t.concat([x, draw(st.sampled_from(fits))], axis)


def _padded(draw: Any, pool: list[Tensor], x: Tensor) -> Tensor:
    widths = [(0, 0)] * x.rank
    widths[_axis(draw, x)] = (draw(st.integers(0, 2)), draw(st.integers(0, 2)))
    return t.pad(x, widths, draw(st.sampled_from((0.0, 1.0))))


def _stretched(draw: Any, pool: list[Tensor], x: Tensor) -> Tensor:
    return t.broadcast_to(x, [draw(st.integers(1, 3)) if d == 1 else d for d in x.shape])


def _reduced(draw: Any, pool: list[Tensor], x: Tensor) -> Tensor:
    f = draw(st.sampled_from((t.sum, t.max, t.mean)))
    return f(x, _axis(draw, x), True) if 0 not in x.shape else x


def _cast(draw: Any, pool: list[Tensor], x: Tensor) -> Tensor:
    return t.cast(t.cast(x, draw(st.sampled_from(("float64", "float32", "bfloat16")))), x.dtype)


def _flipped(draw: Any, pool: list[Tensor], x: Tensor) -> Tensor:
    return t.flip(x, _axis(draw, x))


def _picked(draw: Any, pool: list[Tensor], x: Tensor) -> Tensor:
    axis = _axis(draw, x)
    top: int = x.shape[axis]  # type: ignore[assignment]
    if not top:
        return x
    index = st.lists(st.integers(0, top - 1), min_size=1, max_size=3)
    return t.gather(x, t.constant(np.array(draw(index))), axis)


def _filled(draw: Any, pool: list[Tensor], x: Tensor) -> Tensor:
    return t.full(x.shape, draw(st.sampled_from(NUMBERS)), x.dtype)


EXACT_STEPS = (_binary, _binary, _divided, _unary, _chosen, _reshaped, _permuted, _sliced, _joined, _padded, _stretched,
               _cast, _flipped, _picked, _filled)  # fmt: skip
STEPS = (*EXACT_STEPS, _reduced)


@st.composite
def graphs(draw: Any, steps: Any = STEPS, dtype: str = "float32") -> Graph:
    """A graph of a dozen steps over three leaves."""
    pool = [t.input("x", (2, 3, 4), dtype), t.input("y", (1, 3, 1), dtype), t.param("w", (3, 4), dtype)]
    pool.append(t.cast(t.iota((2, 3, 4), 2), dtype))
    for _ in range(draw(st.integers(1, 12))):
        x = draw(st.sampled_from(pool))
        if x.rank == 0:
            continue
        made = draw(st.sampled_from(steps))(draw, pool, x)
        if made.rank <= 4 and np.prod(made.shape, dtype=int) <= 200:
            pool.append(made)
    return Graph.of(pool[-1:] + draw(st.lists(st.sampled_from(pool), max_size=2)), inputs=pool[:2])


SPECIAL = np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 0.1, 3.4e38, 1e-45, 5.0])


def values(seed: int, special: bool) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    draw = (lambda s: rng.choice(SPECIAL, s)) if special else (lambda s: rng.uniform(0.5, 2, s))
    return {"x": draw((2, 3, 4)), "y": draw((1, 3, 1)), "w": draw((3, 4))}


def results(graph: Graph, data: dict[str, Any], **options: Any) -> list[Any]:
    with np.errstate(all="ignore"):
        return evaluate(graph, data, params={"w": data["w"]}, **options)


@settings(deadline=None, max_examples=examples(150))
@given(graphs(), st.integers(0, 99))
def test_the_meaning_is_kept(graph: Graph, seed: int) -> None:
    data = values(seed, special=False)
    small = simplify(graph)
    for before, after in zip(results(graph, data, float64=True), results(small, data, float64=True), strict=True):
        np.testing.assert_allclose(after, before, rtol=1e-9, atol=1e-9)
    assert [o.type for o in small.outputs] == [o.type for o in graph.outputs]


@settings(deadline=None, max_examples=examples(150))
@given(graphs(EXACT_STEPS), st.integers(0, 99))
def test_exact_keeps_every_bit(graph: Graph, seed: int) -> None:
    with np.errstate(all="ignore"):
        data = {k: v.astype(np.float32) for k, v in values(seed, special=True).items()}
    small = simplify(graph, exact=True)
    for before, after in zip(results(graph, data), results(small, data), strict=True):
        assert before.dtype == after.dtype and before.shape == after.shape
        nan = np.isnan(before)
        np.testing.assert_array_equal(nan, np.isnan(after))
        np.testing.assert_array_equal(np.where(nan, 0, before).view(np.uint32), np.where(nan, 0, after).view(np.uint32))


@settings(deadline=None, max_examples=examples(150))
@given(graphs(), st.booleans())
def test_once_is_enough(graph: Graph, exact: bool) -> None:
    small = simplify(graph, exact=exact)
    assert simplify(small, exact=exact) is small


# ---------------------------------------------------------------- steps
ZERO, ONE = t.full((1, 1, 1), 0.0), t.full((1, 1, 1), 1.0)
VIEW = t.reshape(X, (6, 4))
SAME: dict[str, tuple[Tensor, Tensor]] = {
    "reshape back": (t.reshape(VIEW, (2, 3, 4)), X),
    "reshape twice": (t.reshape(VIEW, (24,)), t.reshape(X, (24,))),
    "permute back": (t.permute(t.permute(X, (2, 0, 1)), (1, 2, 0)), X),
    "permute of ones": (t.permute(t.reshape(X, (2, 1, 12)), (1, 0, 2)), t.reshape(X, (1, 2, 12))),
    "slice of slice": (X[:, :, 1:][:, :, ::2], t.slice_axis(X, 2, 1, 4, 2)),
    "slice of concat": (t.concat([X, X * 2.0], 1)[:, 3:5], (X * 2.0)[:, :2]),
    "slice of pad": (t.pad(X, [(0, 0), (2, 1), (0, 0)])[:, 2:4], X[:, :2]),
    "slices joined": (t.concat([X[..., :1], X[..., 1:]], 2), X),
    "empty part": (t.concat([X[:, :0], X], 1), X),
    "pad by nothing": (make("pad", (X,), {"axis": 0, "lo": 0, "hi": 0}), X),
    "broadcast operand": (X + t.broadcast_to(t.reshape(I * 1, (2, 3, 1)), (2, 3, 4)), X + t.reshape(I, (2, 3, 1))),
    "times one": (X * ONE, X),
    "minus nothing": (X - ZERO, X),
    "double negation": (t.neg(-X), X),
    "minus minus": (X - (-X), X + X),
    "cast through wider": (t.cast(t.cast(X, "float64"), "float32"), X),
    "cast of int": (t.cast(t.cast(I, "int64"), "int32"), I),
    "where true": (t.where(t.full((1, 1, 1), True, "bool"), X, 0.0), X),
    "where not": (t.where(t.logical_not(X > 0), X, 0.0), t.where(X > 0, 0.0, X)),
    "division by a power of two": (X / 8.0, X * 0.125),
    "flipped twice": (t.flip(t.flip(X, 1), 1), X),
    "int times zero": (I * 0, t.full((2, 3), 0, "int32")),
    "same either way": (X * X[:1] - X[:1] * X, (X * X[:1]) - (X * X[:1])),
    "first row": (X[t.constant(np.array([0]))], X[:1]),
    "max of max": (t.max(t.max(X, 1, True), 2, True), t.max(X, (1, 2), True)),
}
ONLY_ROUNDED: dict[str, tuple[Tensor, Tensor]] = {
    "plus nothing": (X + ZERO, X),
    "division": (X / 10.0, X * 0.1),
    "division by a larger fill": (X[:1] / t.full((2, 3, 4), 10.0), X[:1] * t.full((2, 3, 4), 0.1)),
    "minus a larger fill": (X[:1] - t.full((2, 3, 4), 10.0), X[:1] + t.full((2, 3, 4), -10.0)),
    "square": (t.pow(X, 2.0), X * X),
    "cube": (t.pow(X, 3.0), X * X * X),
    "square root": (t.pow(X, 0.5), t.sqrt(X)),
    "reciprocal root": (t.pow(X, -0.5), t.rsqrt(X)),
    "reciprocal": (t.pow(X, -1.0), t.recip(X)),
    "quotient by a root": (X / t.sqrt(X), X * t.rsqrt(X)),
    "two factors": (X * 0.5 * 3.0, X * 1.5),
    "sum over one": (t.sum(X[:1], 0, True), X[:1]),
}


def test_a_division_stays_where_its_rounding_decides_a_whole_number() -> None:
    """49 * (1 / 49) is less than 1."""
    product = t.floor(t.matmul(X / 49.0, t.swapaxes(X, 1, 2)) + 1.0)
    for sharp in (t.floor(X / 49.0 + 2.0), product, t.cast(-(X / 49.0), "int32"), t.where(t.eq(X / 49.0, 1.0), X, 0.0)):
        assert "div" in {n.op for n in Graph.of([only(sharp)]).nodes()}
    for smooth in (
        t.floor(X / 8.0),
        t.exp(X / 49.0),
        t.floor(t.matmul(t.exp(X / 49.0), t.swapaxes(X, 1, 2))),
        t.where(t.eq(X / 49.0, -float("inf")), 0.0, X),
        t.where(t.lt(0.0, X / 49.0), X / 49.0, 0.0),  # an activation
    ):
        assert "div" not in {n.op for n in Graph.of([only(smooth)]).nodes()}


def test_constants_are_folded_as_the_model_rounds_where_rounding_decides() -> None:
    """In float32, 1.5 / (3 / 255) is 127.5; in float64, with the quotient in float32, less."""
    low, high = t.constant(np.float32([1.5, -1.5, 1.0])), t.full((1,), 3.0)
    scale = high / 255.0
    zero = t.cast(t.round(t.max(low, (0,), True) / scale), "uint8")
    for root in (
        zero,
        quantized_ops.quantize(low, scale, zero),
        t.floor(t.full((3,), 0.1) * 3.0 * 10.0),
        t.lt(t.full((1,), 0.1), 0.1 + 1e-9),
    ):
        np.testing.assert_array_equal(evaluate([only(root)], {})[0], evaluate([root], {})[0])


@pytest.mark.parametrize(
    ("decided", "root"),
    [
        (True, t.floor(X / 49.0)), (True, t.cast(t.maximum(X * 0.1, 0.0), "int32")), (True, t.mod(X, 0.1)), (True, t.lt(X / 255.0, 0.5)),
        (True, t.lt(t.mean(X, 1), 3.0)), (True, t.lt(t.matmul(X, t.swapaxes(X, 1, 2)) / 49.0, 1.0)), (True, t.argsort(X * 0.1 + X, 1)),
        (True, t.floor(t.matmul(X / 7.0, t.swapaxes(X, 1, 2)))), (False, t.lt(t.matmul(t.exp(X / 7.0), t.swapaxes(X, 1, 2)), 1.0)),
        (False, t.where(t.lt(0.0, t.mean(X, 1)), t.mean(X, 1), 0.0)), (False, t.argmax(t.mean(X, 1), 0)),
        (False, t.floor(X)), (False, t.cast(t.round(X / 49.0), "int8")), (False, t.lt(t.matmul(X, t.swapaxes(X, 1, 2)) + 1.0, 0.0)), (False, t.exp(X / 49.0)),
    ],
)  # fmt: skip
def test_where_rounding_decides(decided: bool, root: Tensor) -> None:
    assert bool(deciding(Graph.of([root]))) == decided


@pytest.mark.parametrize("name", SAME)
def test_steps(name: str) -> None:
    before, after = SAME[name]
    assert only(before, exact=True) is only(after, exact=True)
    assert only(before) is only(after)


@pytest.mark.parametrize("name", ONLY_ROUNDED)
def test_steps_that_round(name: str) -> None:
    before, after = ONLY_ROUNDED[name]
    assert only(before) is only(after)
    assert only(before, exact=True) is before


def test_fills_fold_at_any_size() -> None:
    n = dim("n")
    value = only(t.exp(t.full((n, 4), 0.0)) + 1.0)
    assert value.op == "full" and value.attr("value") == 2.0 and value.shape == (n, 4)


def test_folding_is_bounded() -> None:
    mask = t.iota((64, 64), 1) <= t.iota((64, 64), 0)
    assert only(mask, fold_bytes=64 * 64).op == "constant"
    assert only(mask, fold_bytes=64 * 64 - 1) is mask


def test_weights_are_never_folded() -> None:
    w = t.param("w", (2, 2))
    assert only(w + w) is w + w


def test_nothing_is_the_same_as_zeros() -> None:
    assert only((X * 3.0)[:, :0]).op == "full"


def test_fills_hold_what_their_dtype_holds() -> None:
    for value, dtype, held in ((-0.25, "bool", 1), (300, "uint8", 44), (-1, "uint16", 65535), (200, "int8", -56)):
        fill = make("full", (), {"value": value, "shape": (2,), "dtype": dtype})
        assert only(fill).attr("value") == held == int(evaluate([fill], {})[0][0])


def test_the_first_power_is_not_exact() -> None:
    """NumPy's is off by a bit for some numbers."""
    assert only(t.pow(X, 1.0), exact=True).op == "pow" and only(t.pow(X, 1.0)) is X


def test_minus_zero_is_not_zero() -> None:
    assert only(X + t.full((1, 1, 1), -0.0), exact=True) is X
    assert only(X + ZERO, exact=True) is not X
    assert t.full((), 0.0) is not t.full((), -0.0)
    assert t.full((), float("nan")) is t.full((), float("nan"))


@pytest.mark.parametrize("source", ["bool", "uint8", "int8", "int16", "int32", "uint32", "int64", "float16",
                                    "bfloat16", "float32", "float64"])  # fmt: skip
@pytest.mark.parametrize("target", ["bool", "uint8", "int16", "int32", "int64", "float16", "bfloat16", "float32",
                                    "float64"])  # fmt: skip
def test_lossless_casts(source: str, target: str) -> None:
    kind = numpy_dtype(source)
    if category(source) == "int":
        info = np.iinfo(kind)
        edge = np.array([info.min, info.max, info.max - 1, 1, 0], kind)
    elif category(source) == "bool":
        edge = np.array([False, True])
    else:
        edge = np.array([1e-7, 1 / 3, 6e4, 1e30, -1e-30, 1e300]).astype(np.float64)
        with np.errstate(over="ignore"):
            edge = edge.astype(kind)
    with np.errstate(all="ignore"):
        back = edge.astype(numpy_dtype(target)).astype(kind)
    if lossless(source, target):
        np.testing.assert_array_equal(back.astype(np.float64), edge.astype(np.float64))


def test_a_large_graph_is_not_a_deep_recursion() -> None:
    x = X
    for i in range(3000):
        x = t.reshape(x, (6, 4) if i % 2 else (24,)) * 1.0 + 0.5
    small = simplify(Graph.of(x))
    assert len(small.nodes()) < len(Graph.of(x).nodes())


def test_an_additive_mask_does_not_dissolve_into_what_it_is_added_to() -> None:
    """(1 − m)·huge must not become huge − m·huge: scores + huge − huge is 0."""
    m, scores = t.input("m", (1, 8), "int64"), t.input("scores", (4, 8))
    graph = Graph.of(scores + (1.0 - t.cast(m, "float32")) * -3.4e38)
    found = simplify(graph)
    (product,) = [n for n in found.nodes() if n.op == "mul"]
    assert product.args[0].op == "where"
    assert simplify(found) is found
    values = {"m": np.arange(8).reshape(1, 8) % 2, "scores": np.ones((4, 8), np.float32)}
    assert np.array_equal(evaluate(found, values)[0], evaluate(graph, values)[0])


@pytest.mark.parametrize(
    "kind", ["at most", "below", "from", "window", "between", "not below", "known", "reshaped", "all"]
)
def test_whether_a_mask_of_positions_shows_any_follows_from_its_bounds(kind: str) -> None:
    """Without a reduction, for every bound before, among and behind the positions; bit by bit."""
    p, q, b = t.input("p", (3, 1), "int64"), t.input("q", (3, 1), "int64"), t.input("b", (3, 1), "bool")
    line, grid = t.reshape(t.iota((7,), 0), (1, 7)), t.iota((3, 7), 1)
    mask = {
        "at most": t.le(line, p), "below": t.lt(line, p), "from": t.le(p, line), "not below": t.logical_not(t.lt(p, line)),
        "window": t.logical_and(t.le(line, p), t.lt(p - q, line)), "between": t.logical_and(t.lt(line, p), t.lt(q, grid)),
        "known": t.logical_and(t.le(grid, p), b), "reshaped": t.reshape(t.le(line, p), (1, 3, 1, 7)),
        "all": t.logical_and(t.logical_and(t.le(line, p), t.lt(q, line)), t.logical_and(b, t.lt(line, q + 3))),
    }[kind]  # fmt: skip
    graph = Graph.of(t.max(mask, axis=-1, keepdims=True))
    simple = simplify(graph, exact=True)
    assert not any(n.op in ("max", "iota", "constant") for n in simple.nodes()) and simplify(simple) is simple
    for low in (-4, -1, 0, 2, 6, 9):
        values = {"p": np.arange(-2, 9)[:, None, None].repeat(3, 1), "q": np.array([[low], [1], [low - 1]]), "b": np.array([[True], [False], [True]])}  # fmt: skip
        for at in values["p"]:
            given = {n.attr("name"): at if n.attr("name") == "p" else values[n.attr("name")] for n in graph.inputs}
            np.testing.assert_array_equal(evaluate(simple, given)[0], evaluate(graph, given)[0])


def test_counters_have_one_spelling() -> None:
    line = t.reshape(t.iota((5,), 0), (1, 5, 1))
    assert only(line).op == "iota" and only(line).attr("axis") == 1
    assert only(constant(np.arange(5)[None])) is t.iota((1, 5), 1)
    assert only(constant(np.arange(1, 6)[None])).op == "constant"


@pytest.mark.parametrize(("places", "gathered"), [([1, 2, 0], False), ([2, 1, 0], False), ([0, 1, 2], False), ([4, 9, -3], False),
                                                  ([0, 2, 0, 2], True), ([], True)])  # fmt: skip
def test_known_places_in_few_runs_are_slices(places: list[int], gathered: bool) -> None:
    """A cross product takes its components in turn; places beyond an axis are its first or last."""
    x = t.input("x", (4, 5, 2))
    graph = Graph.of(t.gather(x, t.constant(np.array(places, np.int64)), 1))
    simple = simplify(graph)
    assert any(n.op == "gather" for n in simple.nodes()) is gathered or not places
    values = {"x": np.arange(40.0, dtype=np.float32).reshape(4, 5, 2)}
    np.testing.assert_array_equal(evaluate(simple, values)[0], evaluate(graph, values)[0])
