"""Integers of kernel texts as functions of sizes: the right ones are found, coincidences are refused."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensor_graphs.backends.cuda.emit.sizes import _constant
from tensor_graphs.backends.generate.size_fit import fit, value_at
from tensor_graphs.backends.generate.size_probes import held_out, probes
from tensor_graphs.backends.generate.size_text import NoForm, Text

ONE, TWO = {"T": (1, 4096)}, {"B": (1, 64), "T": (1, 2048)}
Function = Callable[[dict[str, int]], int]


def ceil(a: int, b: int) -> int:
    return -(-a // b)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 64), st.integers(0, 7), st.integers(0, 50), st.integers(1, 4))
def test_tile_counts_strides_and_extents_are_found(factor: int, tile: int, shift: int, times: int) -> None:
    functions: list[Function] = [
        lambda s: factor * s["T"] + shift,
        lambda s: factor * ceil(times * s["T"], 1 << tile) + shift,
        lambda s: factor * s["T"] * s["T"],
    ]
    points = probes(ONE)
    for f in functions:
        found = fit([f(p) for p in points], points)
        assert found is not None
        for n in (1, 2, 3, 63, 64, 65, 1000, 2047, 2048, 4095, 4096):
            assert value_at(found, {"T": n}) == f({"T": n}), (found, n)


def test_functions_of_two_sizes_are_found() -> None:
    points = probes(TWO)
    functions: list[Function] = [
        lambda s: 48 * s["B"] * s["T"],
        lambda s: s["B"] + s["T"],
        lambda s: s["B"] * ceil(s["T"], 64),
        lambda s: 4 * s["B"] * ceil(s["T"], 32) * ceil(s["T"], 128),
        lambda s: ceil(s["T"], 32) - 1,
        lambda s: min(s["T"], 777),
    ]
    for f in functions:
        found = fit([f(p) for p in points], points)
        assert found is not None
        assert all(
            value_at(found, s) == f(s) for s in ({"B": b, "T": t} for b in (1, 7, 64) for t in (1, 63, 64, 2048))
        )


@pytest.mark.parametrize("seed", range(20))
def test_values_without_a_law_have_no_function(seed: int) -> None:
    points, rng = probes(ONE), random.Random(seed)
    assert fit([rng.randrange(1, 1 << (4 + seed % 16)) for _ in points], points) is None


@pytest.mark.parametrize(
    "law",
    [lambda n: n * n + n, lambda n: n.bit_length(), lambda n: n % 7, lambda n: 1 << n.bit_length(), lambda n: n // 3],
)
def test_other_laws_are_refused(law: Callable[[int], int]) -> None:
    points = probes(ONE)
    assert fit([law(p["T"]) for p in points], points) is None


def test_one_value_that_differs_refuses_the_text() -> None:
    points = probes(ONE)
    texts = [f"for i in range({p['T']}): x[{3 * p['T'] + 1}]" for p in points]
    assert Text.of(texts, points).at({"T": 5}) == "for i in range(5): x[16]"
    texts[4] = texts[4].replace(f"{3 * points[4]['T'] + 1}", f"{3 * points[4]['T'] + 2}")
    with pytest.raises(NoForm, match="no known function"):
        Text.of(texts, points)


@pytest.mark.parametrize("ranges", [ONE, TWO, {"T": (1, 32768)}, {"T": (17, 300)}])
def test_held_out_sizes_are_others_than_those_of_the_fit(ranges: dict[str, tuple[int, int]]) -> None:
    used, other = probes(ranges), list(held_out(ranges))
    assert len([p for p in other if p not in used]) >= 3
    for point in (*used, *other):
        assert all(low <= point[n] <= high for n, (low, high) in ranges.items())
    assert max(p["T"] for p in other) > 0.95 * ranges["T"][1]


@pytest.mark.parametrize(
    ("line", "constant"),
    [
        ("const Spot at = roles.spot<(((63 + size_T) / 64)), 44, 8, (-64 + size_T), 2752>(tile);", True),
        ("y = load<Pack<float, 8>, size_T>(x);", True),
        ("float held[(size_T)];", True),
        ("if (row < size_T && i < 4) {", False),
        ("for (int i = 0; i < (63 + size_T) / 64; ++i) { at<8>(x, size_T); }", False),
        ("Pack<float, 8> y = load<float, 8>(x + size_T * 4);", False),
        ("y = a < size_T ? b : c;", False),
    ],
)
def test_sizes_are_not_where_cuda_needs_constants(line: str, constant: bool) -> None:
    assert _constant(line, "size_") == constant
