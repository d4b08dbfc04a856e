"""The reference interpreter: products of large weights in pieces, what it holds at once, decompositions walked once."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensor_graphs.egraph.builders import builders as t
from tensor_graphs.egraph.composites import composite_ops as c
from tensor_graphs.egraph.evaluate import interpret
from tensor_graphs.egraph.evaluate.interpret import evaluate, expand_all
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.ir.memo import forget
from tensor_graphs.egraph.ir.tensor import Tensor
from tensor_graphs.verification.memory_checks import largest_value_bytes, run_bytes

DTYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32, "float64": np.float64}


def peak(call: Callable[[], Any]) -> int:
    """Bytes that a call allocates at its peak, in Python and NumPy."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@given(
    st.sampled_from(sorted(DTYPES)), st.sampled_from([(), (3,), (2, 3)]), st.booleans(), st.integers(1, 9),
    st.integers(1, 60), st.integers(1, 2000), st.booleans(),
)  # fmt: skip
def test_products_in_pieces_are_the_products(
    dtype: str, stack: tuple[int, ...], stacked: bool, n: int, k: int, room: int, turned: bool
) -> None:
    m = 4
    own = stack if stacked else ()
    rng = np.random.default_rng(n * k)
    x = rng.standard_normal((*stack, m, k)).astype(DTYPES[dtype])
    shape = (*own, n, k) if turned else (*own, k, n)
    w = rng.standard_normal(shape).astype(DTYPES[dtype])
    weight = t.transpose(t.param("w", shape, dtype)) if turned else t.param("w", shape, dtype)
    product = t.matmul(t.input("x", x.shape, dtype), weight)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpret, "CHUNK", room)
        patch.setattr(interpret, "PARTIAL", 2 * room)
        wide, own_dtype = (
            evaluate([product], {"x": x}, params={"w": w}, float64=float64)[0] for float64 in (True, False)
        )
    y = np.swapaxes(w, -1, -2) if turned else w
    np.testing.assert_allclose(wide, x.astype(np.float64) @ y.astype(np.float64), rtol=1e-12, atol=1e-12)
    assert wide.dtype == np.float64 and own_dtype.dtype == DTYPES[dtype]
    whole = evaluate([product], {"x": x}, params={"w": w}, whole=True)[0].astype(np.float64)
    np.testing.assert_allclose(own_dtype.astype(np.float64), whole, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("float64", [True, False])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_large_weight_is_not_held_a_second_time(dtype: str, float64: bool) -> None:
    w = np.ones((1 << 17, 64), DTYPES[dtype])  # 16 MiB; 64 MiB as float64, 32 as float32
    head = t.matmul(t.input("x", (1, 64), dtype), t.transpose(t.param("w", w.shape, dtype)))
    found = peak(lambda: evaluate([head], {"x": np.ones((1, 64), w.dtype)}, params={"w": w}, float64=float64))
    assert found < interpret.CHUNK + (3 << 20)  # a piece, and a result of 1 MiB with its copy in the other dtype


def test_in_float64_a_cast_of_floats_copies_nothing() -> None:
    w = np.ones((1 << 16, 64), np.float16)
    rows = t.gather(t.param("w", w.shape, "float16").astype("float32"), t.input("i", (2,), "int64"), 0)
    found = peak(lambda: evaluate([rows], {"i": np.array([1, 5])}, params={"w": w}, float64=True))
    assert found < 1 << 20


def test_float64_results_take_the_place_of_operands_that_nothing_else_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values and inputs stay as they are: only operands with one consumer are overwritten, also behind a reshape."""
    monkeypatch.setattr(interpret, "LARGE_RESULT", 0)
    x, codes, scale = t.input("x", (4, 6)), t.input("q", (4, 6), "uint8"), t.input("s", (4, 1), "bfloat16")
    wide, shared = t.cast(codes, "bfloat16"), x + 1.0
    roots = [t.reshape((wide - 8.0) * scale, (6, 4)) * 2.0, shared * 3.0, t.reshape(shared, (24,)) - 1.0, shared, x * x]
    rng = np.random.default_rng(0)
    given = {"x": rng.standard_normal((4, 6)), "q": rng.integers(0, 16, (4, 6), np.uint8)}
    given["s"] = np.full((4, 1), 0.5, ml_dtypes.bfloat16)
    kept, overwritten, find = {n: v.copy() for n, v in given.items()}, list[str](), interpret._overwritten

    def noted(node: Tensor, operands: Any, once: Any) -> Any:
        found = find(node, operands, once)
        overwritten.extend([node.op] * (found is not None))
        return found

    monkeypatch.setattr(interpret, "_overwritten", noted)
    found = evaluate(roots, given, float64=True)
    assert sorted(overwritten) == ["mul", "mul", "sub"]
    steps = (kept["q"].astype(np.float64) - 8.0) * 0.5
    wanted = [
        steps.reshape(6, 4) * 2,
        (kept["x"] + 1) * 3,
        (kept["x"] + 1).reshape(24) - 1,
        kept["x"] + 1,
        kept["x"] * kept["x"],
    ]
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one, other)
    for name, value in given.items():
        np.testing.assert_array_equal(value, kept[name])


@pytest.mark.parametrize("float64", [True, False])
def test_values_go_after_their_last_use(float64: bool) -> None:
    x = y = t.input("x", (1 << 16,), "float64")
    for i in range(30):
        y = t.exp(y * (0.5 + i))
    given_x = np.zeros(1 << 16)
    assert peak(lambda: evaluate([y], {"x": given_x}, float64=float64)) < 5 * given_x.nbytes, x


def test_decompositions_are_walked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is walked grows with the graph, not with its square."""

    def walked(depth: int) -> int:
        x: Tensor = t.input("x", (4, 8))
        for _ in range(depth):
            x = c.layer_norm(c.gelu(x), t.full((8,), 1.0), t.full((8,), 0.5), eps=1e-5)
        seen = 0
        plain = interpret.topological

        def counting(*args: Any) -> list[Tensor]:
            nonlocal seen
            found = plain(*args)
            seen += len(found)
            return found

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(interpret, "topological", counting)
            expanded = expand_all([x])
        assert not any(n.entry.composite for n in plain(expanded))
        return seen

    assert walked(40) < 2.2 * walked(20)


def test_a_graph_is_expanded_once_in_an_optimization(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several stages need its atomic operations: checks of memory, random inputs, references."""
    x = t.input("x", (4, 8))
    graph = Graph.of([c.softmax(x, axis=1)])
    forget()
    expansions = list[object]()
    real = interpret.expand_all
    monkeypatch.setattr(interpret, "expand_all", lambda *given, **how: (expansions.append(how), real(*given, **how))[1])
    for _ in range(2):
        assert interpret.expanded(graph).roots == tuple(real(graph.roots))
        assert largest_value_bytes(graph) == 128 and run_bytes(graph, float64=False) >= 128
        evaluate(graph, {"x": np.ones((4, 8), np.float32)})
    assert len(expansions) == 1
    forget()
    interpret.expanded(graph)
    assert len(expansions) == 2


def test_numbers_in_products_of_halves_are_not_rounded() -> None:
    """As in PyTorch's kernels: 0.299 times 31 rounds once."""
    x = np.arange(600.0).astype("f2")
    (found,) = evaluate([t.input("x", x.shape, "float16") * 0.299], {"x": x})
    np.testing.assert_array_equal(found, (x.astype("f4") * np.float32(0.299)).astype("f2"))
    ones = t.full((3, 1), 1.0, "float16")
    assert evaluate([ones * t.full((1, 4), 2.0, "float16")], {})[0].shape == (3, 4)
