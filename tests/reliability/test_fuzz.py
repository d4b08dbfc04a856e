"""Random graphs over the whole op table and all dtypes (tests/fuzz), a few of each kind.

`python -m tests.fuzz CHECK --seconds 600 --seed N` goes on for as long as one likes.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.egraph.evaluate.interpret import evaluate
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.ir.tensor import make
from tensor_graphs.egraph.types.dtypes import numpy_dtype

from ..fuzz import checks, integers, numpy_functions
from ..fuzz.__main__ import CHECKS, FLOAT32, attempted
from ..fuzz.graphs import Array, Case, Grower, Kinds, case

#: check -> graphs that are tried, and their steps.
COUNTS = {
    "simplified": (60, 8),
    "bitwise": (4, 6),
    "blocks": (5, 6),
    "empty": (3, 6),
    "classes": (6, 6),
    "exact": (4, 6),
    "plans": (3, 6),
    "filed": (3, 6),
    "optimized": (3, 6),
    "sizes": (8, 7),
    "specified": (8, 7),
}
#: The same of float32 alone, where most rules and kernels apply.
NARROW = {"classes": (20, 10), "optimized": (15, 10)}


def tried(run: Callable[..., str], kinds: Kinds, count: int, steps: int) -> None:
    for seed in range(count):
        one = Grower(seed, kinds).graph(steps)
        message = attempted(run, one, seed)
        assert not message, f"seed {seed}\n{one.text()}\n{message}"


@pytest.mark.parametrize("check", COUNTS)
def test_random_graphs(check: str) -> None:
    pytest.importorskip("torch")
    tried(*CHECKS[check], *COUNTS[check])


@pytest.mark.parametrize("check", NARROW)
def test_random_graphs_of_float32(check: str) -> None:
    pytest.importorskip("torch")
    tried(CHECKS[check][0], FLOAT32, *NARROW[check])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_exact_programs_round_where_the_graph_does(dtype: str) -> None:
    """Rules put composite ops together that are exact themselves; their kernels may round at other places."""
    x = tg.input("x", (64,), dtype)
    graph = Graph.of([tg.clip(tg.erf(x) * (1 / 6) + 0.5, lo=0.0, hi=1.0), tg.sigmoid(x) * x, tg.maximum(x, 0.0) * 0.3])
    values = np.random.default_rng(0).standard_normal(64).astype(numpy_dtype(dtype))
    made = tg.optimize(graph, backend="numpy", tolerance="exact", measure=False, verify=False)
    for found, want in zip(made.flat(values), evaluate(graph, {"x": values}), strict=True):
        assert np.asarray(found).tobytes() == want.tobytes()


# ---------------------------------------------------------------- graphs that once failed
def _x(*shape: int) -> tg.Tensor:
    return tg.input("x", shape)


REGRESSIONS: dict[str, Callable[[], list[tg.Tensor]]] = {
    "identity": lambda: [_x(2, 3)],
    "twice the same output": lambda: [_x(2), _x(2), _x(2) + 0.0],
    "a flipped operand where kernels want dense ones": lambda: [
        tg.linear(tg.flip(_x(2, 3), 1), tg.param("w", (3, 2)), tg.full((2,), 1.0))
    ],
    "weights alone": lambda: [tg.exp(tg.param("w", (2, 3)))],
    "values written at some places": lambda: [
        make(
            "scatter_elements",
            [_x(2, 4), tg.full((2, 1), 2, "int64"), tg.input("y", (2, 1))],
            {"axis": 1, "mode": "set"},
        )
    ],
}


def with_data(roots: list[tg.Tensor]) -> Case:
    rng, graph = np.random.default_rng(7), Graph.of(roots)
    values: Callable[[str], dict[str, Array]] = lambda op: {
        str(n.attr("name")): rng.standard_normal(n.shape).astype(np.float32)  # type: ignore[arg-type]
        for n in graph.leaves(op)
    }
    return case(roots, values("input"), values("param"))


@pytest.mark.parametrize("name", REGRESSIONS)
@pytest.mark.parametrize("check", [checks.simplified, checks.classes, checks.plans, checks.optimized])
def test_graphs_that_once_failed(name: str, check: Callable[[Case, random.Random], Any]) -> None:
    pytest.importorskip("torch")
    assert not check(with_data(REGRESSIONS[name]()), random.Random(0))


@pytest.mark.parametrize("dtype", ["bool", "int8", "int64"])
def test_convolutions_that_torch_does_not_know_are_left_to_numpy(dtype: str) -> None:
    """NumPy's products of floats are left out beside Torch; those of whole numbers and truth values are not."""
    pytest.importorskip("torch")
    grower = Grower(0)
    x, w = (grower.array(shape, dtype) for shape in ((3, 2, 4, 5), (2, 1, 2, 1)))
    roots = tg.input("x", x.shape, dtype), tg.input("w", w.shape, dtype)
    graph = Graph.of(make("conv", roots, {"strides": (1, 2), "pads": (1, 0, 0, 0), "dilations": (1, 1), "groups": 2}))
    made = tg.optimize(graph, backend="torch", measure=False)
    np.testing.assert_array_equal(made(x, w), evaluate(graph, {"x": x, "w": w})[0])


def test_random_functions_of_numpy() -> None:
    """Traced, they give what NumPy gives untraced, or raise a named error; most of them the former."""
    verdicts = [numpy_functions.attempt(seed) for seed in range(250)]
    wrong = [
        f"seed {i}\n{source}{message}" for i, (verdict, message, source) in enumerate(verdicts) if verdict == "wrong"
    ]
    assert not wrong, wrong[0]
    assert sum(v == "right" for v, _, _ in verdicts) > 0.8 * len(verdicts)
    for seed in (3, 5, 8):
        assert numpy_functions.attempt(seed, optimized=True)[0] in ("right", "refused")


def test_random_programs_of_integers() -> None:
    """Without verification, too; at these seeds, C kernels that do not wrap integers differ."""
    assert [integers.fault(1_000_000 + i, "c") for i in (7, 11, 16)] == [""] * 3
