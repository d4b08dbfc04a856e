"""Verification of graphs whose sums overflow in their own dtypes: results that only the order of a sum decides are
equal, others are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.egraph.ir.graph import Graph

from .test_verifier_faults import DEVICES, in_strips, judged

N = 20
X = tg.input("x", (N, N))
SIGNED = (tg.abs(X) + 0.5) * tg.constant(
    np.random.default_rng(0).choice(np.array([-1, 1], np.float32), (N, N))
)  # no row of one sign or size
OF_BOTH_SIGNS = {
    "product": (SIGNED * 1e25) @ (SIGNED * 1e25),
    "sum": tg.sum(tg.tanh(SIGNED) * 3e38, axis=1),
    "beside numbers": tg.concat([(SIGNED * 1e25) @ (SIGNED * 1e25), X], axis=0),
}
OF_ONE_SIGN = {
    "product": tg.exp(X * 60.0) @ tg.exp(X * 60.0),
    "sum": tg.sum(tg.exp(X * 60.0) * 1e30, axis=1),
    "element": X * 1e30 * 1e30,
    "difference": X * 1e30 * 1e30 - X * 1e30 * 1e30,
}


def lost(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return ~np.isfinite(x)


def with_nan(found: list[Any], values: Any) -> None:
    found[0][lost(found[0])] = np.nan


def negated(found: list[Any], values: Any) -> None:
    found[0][lost(found[0])] = -np.where(np.isnan(found[0]), np.inf, found[0])[lost(found[0])]


def lost_numbers(found: list[Any], values: Any) -> None:
    found[0][np.unravel_index(np.flatnonzero(~lost(found[0]))[:1], found[0].shape)] = np.nan


def numbers(found: list[Any], values: Any) -> None:
    found[0][lost(found[0])] = 1.0


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", OF_BOTH_SIGNS)
@pytest.mark.parametrize("change", [with_nan, negated])
def test_results_that_the_order_of_a_sum_decides_are_equal(
    name: str, change: Callable[[Any, Any], None], device: str
) -> None:
    verdict = judged(Graph.of(OF_BOTH_SIGNS[name]), change, device)
    assert verdict.passed and verdict.to_json()["places_that_rounding_decides"] > 0
    assert not judged(Graph.of(OF_BOTH_SIGNS[name]), change, tolerance="exact").passed


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["beside numbers"])
@pytest.mark.parametrize("change", [lost_numbers, numbers])
def test_numbers_are_compared_beside_sums_that_overflow(
    name: str, change: Callable[[Any, Any], None], device: str
) -> None:
    assert not judged(Graph.of(OF_BOTH_SIGNS[name]), change, device).passed


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", OF_ONE_SIGN)
@pytest.mark.parametrize("change", [with_nan, negated])
def test_results_that_no_order_gives_are_refused(name: str, change: Callable[[Any, Any], None], device: str) -> None:
    if name == "difference" and change is with_nan:  # it is NaN already
        change = negated
    assert not judged(Graph.of(OF_ONE_SIGN[name]), change, device).passed


def test_strips_have_the_rule_of_whole_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    in_strips(monkeypatch)
    for change in (with_nan, negated):
        for expression in OF_BOTH_SIGNS.values():
            verdict = judged(Graph.of(expression), change)
            assert verdict.passed and verdict.to_json()["places_that_rounding_decides"] > 0 and "strips" in verdict.note
        for name, expression in OF_ONE_SIGN.items():
            if (name, change) != ("difference", with_nan):  # it is NaN already
                assert not judged(Graph.of(expression), change).passed
    for change in (lost_numbers, numbers):
        assert not judged(Graph.of(OF_BOTH_SIGNS["beside numbers"]), change).passed


def test_integers_computed_from_sums_that_overflow() -> None:
    product = (SIGNED * 1e25) @ (SIGNED * 1e25)
    graph = Graph.of(tg.ne(product, product))
    assert judged(graph, lambda found, values: found[0].__setitem__(slice(None), True)).passed
    product = tg.exp(X * 60.0) @ tg.exp(X * 60.0)
    graph = Graph.of(tg.ne(product, product))
    assert not judged(graph, lambda found, values: found[0].__setitem__(slice(None), True)).passed


def test_a_function_whose_products_overflow_is_optimized() -> None:
    weights = np.full((200, 200), 1e20, np.float32)
    program = tg.optimize(lambda x: (x * 1e20) @ weights, (np.ones((200, 200), np.float32),), budget=1, measure=False)
    assert np.isposinf(program(np.ones((200, 200), np.float32))).all()
