"""Random programs through the engine against NumPy in float64, a few of them: `python -m tests.fuzz.eager` goes on."""

from __future__ import annotations

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.egraph.types.dtypes import numpy_dtype

from ..fuzz.eager import CONFIGURATIONS, Writer, batch, wrong


@pytest.mark.parametrize("number", [0, 2])
def test_random_programs(number: int) -> None:
    assert batch(1000 * number, 24, 6, CONFIGURATIONS[number]) == []


def test_a_wrong_result_is_found() -> None:
    value = next(v for seed in range(20) for v in Writer(seed).write(6).outputs() if v.x.size > 1 and not v.e.any())
    right = value.x.astype(numpy_dtype(value.dtype))
    assert not wrong(right, value)
    off = right.copy()
    off.flat[-1] = ~off.flat[-1] if value.dtype == "bool" else off.flat[-1] + np.asarray(1, off.dtype)
    assert wrong(off, value)


@pytest.mark.parametrize("backend", ["numpy", "c"])
@pytest.mark.parametrize("dtype", ["int8", "int32", "int64"])
def test_negative_places_count_from_the_end(backend: str, dtype: str) -> None:
    x, i = tg.input("x", (5, 200)), tg.input("i", (5, 3), dtype)
    made = tg.optimize(tg.gather_elements(x * 2.0, i, 1) + 1.0, backend=backend, measure=False, budget=5.0)
    values = np.arange(1000, dtype=np.float32).reshape(5, 200)
    places = np.array([[-1, 0, 100], [-128, 127, 1], [2, -2, -3], [0, 0, -1], [5, -5, 50]], dtype)
    want = np.take_along_axis(values * 2, places.astype(np.int64) % 200, 1) + 1
    np.testing.assert_array_equal(made(values, places), want)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_casts_that_lose_something_stay_in_16_bit_models(dtype: str) -> None:
    x = tg.input("x", (3,), dtype)
    graph = {"truth": tg.cast(tg.cast(x, "bool"), "float32"), "whole": tg.cast(tg.cast(x, "int32"), "float32")}
    made = tg.optimize(graph, backend="numpy", measure=False, budget=5.0)
    found = made(np.array([-0.5, 0.0, 2.5], numpy_dtype(dtype)))
    assert found["truth"].tolist() == [1.0, 0.0, 1.0] and found["whole"].tolist() == [0.0, 0.0, 2.0]


def test_the_larger_half_of_uint64_is_not_negative() -> None:
    x, y = tg.input("x", (3,), "uint64"), tg.input("y", (3,), "uint64")
    graph = {
        "less": tg.cast(tg.lt(x, y), "float32") * 2.0,
        "float": tg.cast(x, "float32") * 0.5,
        "most": tg.maximum(x, y) + y,
    }
    made = tg.optimize(graph, backend="c", measure=False, budget=5.0)
    a, b = np.array([2**64 - 1, 1, 2**63], np.uint64), np.array([1, 2**64 - 1, 5], np.uint64)
    found = made(a, b)
    assert found["less"].tolist() == [0.0, 2.0, 0.0] and found["float"].tolist() == [2.0**63, 0.5, 2.0**62]
    assert (found["most"] == np.maximum(a, b) + b).all()
