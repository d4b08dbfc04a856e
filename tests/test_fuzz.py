"""Random typed graphs: every form in the e-graph, and the optimized program, computes what the graph says.

TENSOR_GRAPHS_FUZZ=1000 tries that many graphs (default: a few dozen).
"""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tensor_graphs as tg
from tensor_graphs.egraph import dtypes
from tensor_graphs.egraph.dims import concrete
from tensor_graphs.egraph.graph import Graph, Tensor
from tensor_graphs.egraph.interpret import evaluate
from tensor_graphs.egraph.simplify import simplify
from tensor_graphs.egraph.view import EGraphView
from tensor_graphs.egraph.widen import widen
from tensor_graphs.errors import ExtractionError
from tensor_graphs.pipeline import Options, Session, prepare, saturated
from tensor_graphs.verify import index_bounds, misplaced, relative_error, sample_inputs

EXAMPLES = int(os.environ.get("TENSOR_GRAPHS_FUZZ", "0"))
LIMITS = tg.Limits(iterations=4, nodes=1500, seconds=4.0)
SIZES = (1, 2, 3, 4)


def fuzz(count: int) -> Any:
    return settings(
        deadline=None, max_examples=EXAMPLES or count, derandomize=not EXAMPLES, print_blob=False,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
    )  # fmt: skip


# ---------------------------------------------------------------- random graphs
class Builder:
    """Grows a graph value by value; each step takes an operation that fits some of the latest values."""

    def __init__(self, seed: int) -> None:
        self.rng, self.values, self.count = random.Random(seed), list[Tensor](), 0

    def pick(self, *options: Any) -> Any:
        return self.rng.choice(options)

    def recent(self, values: list[Tensor]) -> Tensor:
        """One of the values, the latest ones most often."""
        return values[-1 - min(int(self.rng.expovariate(0.6)), len(values) - 1)]

    def leaf(self, shape: tuple[int, ...], dtype: str = "float32") -> Tensor:
        self.count += 1
        kind = self.pick("input", "param", "constant", "full") if dtype == "float32" else self.pick("input", "full")
        if kind == "input":
            return tg.input(f"x{self.count}", shape, dtype)
        if kind == "param":
            return tg.param(f"p{self.count}", shape, dtype)
        if kind == "constant":
            return tg.constant(np.linspace(-1, 1.5, math.prod(shape), dtype=np.float32).reshape(shape))
        return tg.full(shape, self.pick(0, 1, 2), dtype) if dtype != "bool" else tg.full(shape, self.pick(0, 1), dtype)

    def some(self, kind: str) -> Tensor:
        return self.recent([v for v in self.values if dtypes.category(v.dtype) == kind])

    def like(self, x: Tensor) -> Tensor:
        """Something that broadcasts with x."""
        fits = [
            v for v in self.values
            if dtypes.category(v.dtype) == dtypes.category(x.dtype) and v.rank <= x.rank
            and all(a in (1, b) for a, b in zip(v.shape[::-1], x.shape[::-1]))
        ]  # fmt: skip
        shape = tuple(self.pick(1, d) for d in concrete(x.shape))
        return self.pick(*fits) if fits and self.pick(0, 1, 2) else self.leaf(shape, x.dtype)

    # ------------------------------------------------ steps
    def unary(self) -> Tensor:
        x = self.some("float")
        return self.pick(
            tg.neg, tg.abs, tg.tanh, tg.sigmoid, tg.relu, tg.silu, tg.gelu, tg.square, tg.sin, tg.cos, tg.erf, tg.floor, tg.sign,
            lambda v: tg.exp(tg.minimum(v, 1.0)), lambda v: tg.sqrt(tg.abs(v) + 0.1), lambda v: tg.log(tg.square(v) + 1.0),
            lambda v: tg.rsqrt(tg.square(v) + 0.5), lambda v: v * 0.5, lambda v: v + 1.0, lambda v: 2.0 - v, lambda v: v / 4.0,
            lambda v: v.astype("float64").astype("float32"), lambda v: tg.clip(v, lo=-1.0, hi=1.0), lambda v: tg.softplus(v),
        )(x)  # fmt: skip

    def binary(self) -> Tensor:
        x = self.some("float")
        y = self.like(x)
        f = self.pick(tg.add, tg.sub, tg.mul, tg.maximum, tg.minimum, lambda a, b: a / (tg.abs(b) + 1.0))
        return f(x, y) if self.pick(0, 1) else f(y, x)

    def integers(self) -> Tensor:
        x = self.some("int")
        return self.pick(
            lambda v: v + 1, lambda v: v * self.like(v), lambda v: v - self.like(v), lambda v: tg.maximum(v, self.like(v)), tg.neg,
            lambda v: tg.floordiv(v, 2), lambda v: tg.mod(v, 3), lambda v: tg.sum(v), lambda v: v.astype("float32"), lambda v: v.astype("bool"),
        )(x)  # fmt: skip

    def logic(self) -> Tensor:
        x = self.some("bool")
        return self.pick(
            tg.logical_not, lambda v: tg.logical_and(v, self.like(v)), lambda v: tg.logical_or(v, self.like(v)),
            lambda v: tg.logical_xor(v, self.like(v)), lambda v: v.astype("int64"), lambda v: v.astype("float32"),
            lambda v: tg.where(v, self.leaf(concrete(v.shape)), 0.0), lambda v: tg.where(v, 1.0, self.leaf(concrete(v.shape))),
        )(x)  # fmt: skip

    def compare(self) -> Tensor:
        x = self.recent(self.values)
        if dtypes.category(x.dtype) == "bool":
            return tg.eq(x, self.like(x))
        if dtypes.category(x.dtype) == "float":  # against a number that no rounding reaches
            return self.pick(lambda v: tg.lt(v, 0.3337), lambda v: tg.gt(v, -0.7771), lambda v: tg.is_nan(v))(x)
        return self.pick(tg.lt, tg.le, tg.eq)(x, self.like(x))

    def reduce(self) -> Tensor:
        x = self.some("float")
        if not x.rank:
            return x
        axis, keep = self.pick(*range(x.rank)), self.pick(False, True)
        f = self.pick(
            tg.sum, tg.max, tg.min, tg.mean, tg.prod, lambda v, axis, keepdims: tg.logsumexp(v, axis, keepdims)
        )
        return f(x, axis, keepdims=keep)

    def view(self) -> Tensor:
        x = self.recent(self.values)
        rank = x.rank
        if not rank:
            return x.reshape((1, 1))
        axis = self.pick(*range(rank))
        size = int(x.shape[axis])  # type: ignore[arg-type]
        start = self.pick(*range(size))
        zero = False if x.dtype == "bool" else 0
        return self.pick(
            lambda: x.reshape((math.prod(concrete(x.shape)),)), lambda: x.reshape((*x.shape, 1)), lambda: tg.flip(x, axis),
            lambda: tg.permute(x, self.rng.sample(range(rank), rank)), lambda: x.reshape((1, *x.shape)),
            lambda: tg.slice_axis(x, axis, start, self.pick(*range(start + 1, size + 1))),
            lambda: tg.slice_axis(x, axis, 0, size, 2), lambda: tg.broadcast_to(x, (2, *x.shape)),
            lambda: tg.pad(x, [(1, 2) if i == axis else (0, 0) for i in range(rank)], zero),
            lambda: tg.windows(x, axis, max(1, size - 1)),
            lambda: tg.concat([x, x], axis), lambda: tg.concat([x, self.leaf(concrete(x.shape), x.dtype)], axis),
            lambda: tg.gather(x, tg.constant(np.array([size - 1, 0], np.int64)), axis),
        )()  # fmt: skip

    def product(self) -> Tensor:
        x = self.some("float")
        if x.rank < 2:
            return x
        n = self.pick(*SIZES)
        k = int(x.shape[-1])  # type: ignore[arg-type]
        fits = [v for v in self.values if v.dtype == "float32" and v.rank == 2 and v.shape[0] == k]
        w = self.pick(*fits) if fits and self.pick(0, 1) else self.leaf((k, n))
        return self.pick(
            lambda: x @ w, lambda: x @ w, lambda: tg.linear(x, w, self.leaf((int(w.shape[1]),))),  # type: ignore[arg-type]
            lambda: tg.matmul(tg.swapaxes(w, 0, 1), tg.swapaxes(x, -1, -2)) if x.rank == 2 else x @ w,
        )()  # fmt: skip

    def composite(self) -> Tensor:
        x = self.some("float")
        if not x.rank:
            return tg.tanh(x)
        d = int(x.shape[-1])  # type: ignore[arg-type]
        axis = self.pick(*range(x.rank))
        return self.pick(
            lambda: tg.softmax(x, axis), lambda: tg.log_softmax(x, axis), lambda: tg.cumsum(x, axis),
            lambda: tg.layer_norm(x, self.leaf((d,)), self.leaf((d,)), eps=0.1), lambda: tg.rms_norm(x, self.leaf((d,)), eps=0.1),
            lambda: tg.attention(x, x, x, causal=self.pick(False, True)) if x.rank >= 3 else tg.softmax(x),
        )()  # fmt: skip

    def step(self) -> None:
        kinds = {dtypes.category(v.dtype) for v in self.values}
        steps = [self.unary, self.unary, self.binary, self.binary, self.binary, self.view, self.view, self.product, self.product,
                 self.reduce, self.composite, self.compare]  # fmt: skip
        steps += [self.integers] * ("int" in kinds) + [self.logic] * ("bool" in kinds)
        made = self.pick(*steps)()
        if math.prod(concrete(made.shape)) <= 256 and made.rank <= 5 and made.dtype in ("float32", "int64", "bool"):
            self.values.append(made)


def grow(seed: int, steps: int = 14) -> Graph:
    """A graph of up to three outputs; every leaf that is used has data."""
    b = Builder(seed)
    shape = tuple(b.pick(*SIZES) for _ in range(b.pick(1, 2, 2, 2, 3, 3)))
    b.values += [tg.param("w", shape), tg.input("x", shape)]
    if b.pick(0, 0, 1):
        b.values.append(tg.input("n", shape, "int64"))
    if b.pick(0, 0, 1):
        b.values.append(tg.input("m", shape, "bool"))
    for _ in range(b.pick(*range(3, steps + 1))):
        b.step()
    return bound(Graph.of(list(dict.fromkeys(b.values[: -b.pick(2, 2, 3, 4) : -1]))))


def graphs(*, steps: int = 14) -> st.SearchStrategy[Graph]:
    """Random graphs; a failing one is cut down by `smallest`, not by hypothesis."""
    return st.integers(0, 1 << 40).map(lambda seed: grow(seed, steps))


def smallest(graph: Graph, check: Callable[[Graph], None]) -> None:
    """`check`; where it fails, it is the first value of the graph for which it fails that is reported."""
    try:
        check(graph)
    except Exception:
        for node in graph.nodes():
            if not node.is_leaf:
                check(bound(Graph.of([node])))
        raise


def bound(graph: Graph) -> Graph:
    rng = np.random.default_rng(7)
    params = {
        str(p.attr("name")): rng.standard_normal(concrete(p.shape)).astype(np.float32) for p in graph.leaves("param")
    }
    return Graph.of(list(graph.outputs), params=params)


# ---------------------------------------------------------------- what must hold
def agree(found: Any, want: Any, own: Any, what: str, *, rtol: float, peak: float) -> None:
    """Equal integers and bools; floats within rtol of the largest value on the way, NaN and infinities in place."""
    found, want = np.asarray(found), np.asarray(want)
    assert found.shape == want.shape, what
    if want.dtype.kind != "f":
        assert np.array_equal(found, want), f"{what}\n{found}\n{want}"
        return
    assert not misplaced(found, want, np.asarray(own)), f"{what}\n{found}\n{want}"
    fine = np.isfinite(found) & np.isfinite(want)
    gap = float(np.abs(found.astype(np.float64)[fine] - want[fine]).max(initial=0.0))
    assert gap <= rtol * peak, f"{what}: off by {gap}, peak {peak}, relative {relative_error(found, want):.3g}"


def peak_of(graph: Graph, inputs: dict[str, Any]) -> float:
    nodes = [n for n in graph.nodes() if dtypes.is_float(n.dtype)]
    values = evaluate(nodes, inputs, params=graph.params, float64=True)
    return max([1.0, *(float(np.abs(v[np.isfinite(v)]).max(initial=0.0)) for v in values)])


def values_of(graph: Graph, seed: int = 0) -> dict[str, Any]:
    return sample_inputs(graph.inputs, np.random.default_rng(seed), index_bounds(graph))


def random_choice(view: EGraphView, rng: random.Random) -> list[int]:
    """One e-node per class, acyclic: the cheapest at random prices."""
    price = [rng.random() ** 3 + 1e-3 for _ in range(len(view))]
    return view.cheapest(price)[1]


def check_forms(graph: Graph, seed: int = 0, tries: int = 6) -> None:
    """Random terms of the saturated view mean what the graph means."""
    session = Session(Options(backend="numpy", measure=False, limits=LIMITS))
    prepared = prepare(session, graph, None)
    view, _, _ = saturated(session, prepared.work)
    inputs = values_of(graph, seed)
    with np.errstate(all="ignore"):
        want, own, peak = evaluate(graph, inputs, float64=True), evaluate(graph, inputs), peak_of(graph, inputs)
        rng = random.Random(seed)
        for _ in range(tries):
            choice = random_choice(view, rng)
            try:
                terms = view.terms(choice, view.roots)
            except ExtractionError as error:
                raise AssertionError(f"a root has no term: {error}") from error
            found = evaluate(terms, inputs, params=graph.params, float64=True)
            for f, w, o, term in zip(found, want, own, terms):
                agree(
                    f,
                    w,
                    o,
                    f"{graph!r}\nbecame\n{Graph.of(term)!r}",
                    rtol=1e-9,
                    peak=max(peak, peak_of(Graph.of(list(terms), params=graph.params), inputs)),
                )


def check_program(graph: Graph, seed: int = 0, **options: Any) -> None:
    """The optimized program computes what the graph means."""
    made = tg.optimize(graph, limits=LIMITS, **({"backend": "numpy", "measure": False, "budget": 20.0} | options))
    inputs = values_of(graph, seed + 100)
    with np.errstate(all="ignore"):
        want, own, peak = evaluate(graph, inputs, float64=True), evaluate(graph, inputs), peak_of(graph, inputs)
    found = made.flat(**inputs)
    for name, f, w, o in zip(graph.names, found, want, own):
        agree(f, w, o, f"{name} of {graph!r}\n{made.source}", rtol=2e-5, peak=peak)


@fuzz(40)
@given(graphs())
def test_simplified_graphs_mean_the_same(graph: Graph) -> None:
    inputs = values_of(graph)
    with np.errstate(all="ignore"):
        want, own = evaluate(graph, inputs, float64=True), evaluate(graph, inputs)
        found = evaluate(simplify(widen(simplify(graph))), inputs, float64=True)
        peak = peak_of(graph, inputs)
    for f, w, o in zip(found, want, own):
        agree(f, w, o, repr(graph), rtol=1e-10, peak=peak)


@fuzz(60)
@given(graphs(), st.integers(0, 1 << 16))
def test_every_form_means_the_same(graph: Graph, seed: int) -> None:
    smallest(graph, lambda g: check_forms(g, seed))


@fuzz(40)
@given(graphs())
def test_programs_compute_what_the_graph_says(graph: Graph) -> None:
    smallest(graph, check_program)


@fuzz(12)
@given(graphs())
def test_torch_programs_compute_what_the_graph_says(graph: Graph) -> None:
    pytest.importorskip("torch")
    smallest(graph, lambda g: check_program(g, backend="torch"))


@fuzz(10)
@given(graphs(steps=5))
def test_exact_programs_are_bitwise(graph: Graph) -> None:
    made = tg.optimize(graph, backend="numpy", measure=False, tolerance="exact", limits=LIMITS, verify=False)
    inputs = values_of(graph, 3)
    with np.errstate(all="ignore"):
        want = evaluate(graph, inputs)
    if any(n.op in ("erf", "gelu") for n in graph.nodes()):
        return  # NumPy's kernel has another error function than the interpreter
    for f, w in zip(made.flat(**inputs), want):
        assert np.array_equal(f, w, equal_nan=f.dtype.kind == "f"), f"{graph!r}\n{made.source}"


# ---------------------------------------------------------------- graphs that once failed
def _x(*shape: int) -> Tensor:
    return tg.input("x", shape)


REGRESSIONS: dict[str, Callable[[], Any]] = {
    "identity": lambda: _x(2, 3),
    "twice the same output": lambda: [_x(2), _x(2), _x(2) + 0.0],
    "a flipped operand where kernels want dense ones": lambda: tg.linear(
        tg.flip(_x(2, 3), 1), tg.param("w", (3, 2)), tg.full((2,), 1.0)
    ),
    "weights alone": lambda: tg.exp(tg.param("w", (2, 3))),
}


@pytest.mark.parametrize("name", REGRESSIONS)
def test_graphs_that_once_failed(name: str) -> None:
    graph = bound(Graph.of(REGRESSIONS[name]()))
    check_forms(graph)
    check_program(graph)
