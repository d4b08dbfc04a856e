"""Symbolic sizes: whatever their form, they are the numbers that Python computes; sizes that take different ways
meet."""

from __future__ import annotations

import operator
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensor_graphs.egraph.types.dims import Dim, bind, bounds, dim, parse
from tensor_graphs.errors import ShapeError

H, T = dim("H", min=1, max=64), dim("T", min=1, max=300)
BY_NUMBER = (operator.floordiv, operator.mod)
Tree = tuple[Callable[[Dim, Dim], Dim], "Tree", "Tree"] | str | int


def trees() -> st.SearchStrategy[Tree]:
    leaf = st.one_of(st.sampled_from(("H", "T")), st.integers(-9, 9))
    plain = lambda inner: st.tuples(st.sampled_from((operator.add, operator.sub, operator.mul)), inner, inner)
    quotient = lambda inner: st.tuples(st.sampled_from(BY_NUMBER), inner, st.integers(1, 9))
    return st.recursive(leaf, lambda inner: st.one_of(plain(inner), quotient(inner)), max_leaves=8)


def value(tree: Tree, sizes: dict[str, Dim]) -> Dim:
    if isinstance(tree, tuple):
        f, a, b = tree
        return f(value(a, sizes), value(b, sizes))
    return sizes[tree] if isinstance(tree, str) else tree


@given(trees(), st.integers(1, 64), st.integers(1, 300))
def test_any_form_is_the_number_that_python_computes(tree: Tree, h: int, t: int) -> None:
    free, sizes = value(tree, {"H": H, "T": T}), {"H": h, "T": t}
    number = value(tree, dict(sizes))
    assert bind(free, sizes) == number
    assert parse(str(free), {"H": H, "T": T}) == free
    low, high = bounds(free)
    assert low <= number <= high


def halved(n: Dim) -> Dim:
    """A window of 3, a step of 2, one element before and after."""
    return (n + 2 - 2 - 1) // 2 + 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (halved(8 * H), 4 * H),
        (halved(halved(halved(8 * H))), H),
        ((8 * H) // 2 // 4, H),
        (T // 2 // 3, T // 6),
        (halved(halved(T)), (T + 3) // 4),
        ((T - 1) // 2 + 1, (T + 1) // 2),
        ((9 * H + 17) // 8, H + 2 + (H + 1) // 8),
        ((T // 2 + H) // 3, (T + 2 * H) // 6),
        ((8 * H + 3) % 4, 3),
        ((T + 8 * H) % 4, T % 4),
        (-(T // -2), -(T // -2)),
        ((6 * H * T + T) // 6, H * T + T // 6),
    ],
)
def test_sizes_that_took_different_ways_meet(one: Dim, other: Dim) -> None:
    assert one == other and hash(one) == hash(other)


@pytest.mark.parametrize(("one", "other"), [(2 * (T // 2), T), ((T + 1) // 2, T // 2), (halved(halved(T)), T // 4)])
def test_sizes_that_differ_at_some_size_stay_apart(one: Dim, other: Dim) -> None:
    assert one != other and any(bind(one, {"T": t}) != bind(other, {"T": t}) for t in range(1, 9))


@pytest.mark.parametrize("one", [T // (H // 3), T % (H - 1)])
def test_sizes_at_which_a_divisor_is_zero_are_named(one: Dim) -> None:
    with pytest.raises(ShapeError, match="which is 0 at these sizes"):
        bind(one, {"T": 7, "H": 1})
