"""Elementwise rules decided bit by bit, and those that are linear piece by piece decided on a grid; wrong ones are
not."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensor_graphs.egraph.patterns.rule import Rule
from tensor_graphs.rules.check.bits import prove_bits
from tensor_graphs.rules.check.check import verdict
from tensor_graphs.rules.check.piecewise_linear import decides

pytest.importorskip("z3")


def rule(text: str) -> Rule:
    sides, _, when = text.partition(" if ")
    body, _, exact = sides.partition(";")
    left, right = body.split(" => ")
    return Rule("one", left.strip(), right.strip(), when=(when,) if when else (), exact=bool(exact))


RIGHT = (
    "neg(neg(x)) => x; exact", "x - y => x + neg(y); exact", "relu(relu(x)) => relu(x); exact", "x - 0.0 => x; exact",
    "maximum(maximum(x, x), y) => maximum(x, y); exact", "relu(exp(x)) => exp(x); exact", "x + 0.0 => x",
    "relu(sigmoid(x)) => sigmoid(x); exact", "is_nan(x) => not_(eq(x, x)); exact", "is_inf(neg(x)) => is_inf(x); exact",
    "minimum(a, maximum(a, b)) => a if fits(b, a)", "where(c, x, x) => x; exact if fits(c, x)",
)  # fmt: skip
WRONG = (
    "x + 0.0 => x; exact",  # of -0.0
    "maximum(x, y) => maximum(y, x); exact",  # of 0.0 and -0.0
    "neg(x) - y => neg(x + y); exact",  # of 0.0 and -0.0
    "x - x => x * 0.0; exact",  # of -1.0
    "(x + y) + z => x + (y + z); exact",  # rounds
    "x + y => y + x * 1.5", "maximum(x, y) => x", "minimum(a, maximum(a, b)) => a", "relu(x) => x", "abs(x) => x; exact",
    "relu(tanh(x)) => tanh(x)", "neg(relu(x)) => relu(neg(x)); exact", "x * 0.0 => x - x; exact", "abs(neg(x)) => neg(abs(x)); exact",
)  # fmt: skip


@pytest.mark.parametrize("text", RIGHT)
def test_right_rules_are_proved(text: str) -> None:
    done, why = prove_bits(rule(text))
    assert done and "float16, bfloat16, float32, float64" in why, why


@pytest.mark.parametrize("text", WRONG)
def test_wrong_rules_are_not(text: str) -> None:
    assert not prove_bits(rule(text))[0]


CAST = "cast(cast(x, dtype='{}'), dtype='{}') => x; exact if dtype(x) == '{}'"


@pytest.mark.parametrize(
    ("there", "back", "right"),
    [("float32", "float16", True), ("float32", "bfloat16", True), ("float64", "float32", True),
     ("bfloat16", "float16", False), ("float16", "bfloat16", False), ("float16", "float32", False)],
)  # fmt: skip
def test_casts_there_and_back(there: str, back: str, right: bool) -> None:
    assert prove_bits(rule(CAST.format(there, back, back)))[0] == right
    assert not prove_bits(rule(CAST.format(there, back, "int32")))[0]


@pytest.mark.parametrize("when", ["", " if rank(x) == 2", " if d != dtype(x)"])
def test_a_cast_is_nothing_in_the_same_dtype_alone(when: str) -> None:
    assert prove_bits(rule("cast(x, dtype=d) => x; exact if d == dtype(x)"))[0]
    assert not prove_bits(rule("cast(x, dtype=d) => x; exact" + when))[0]
    assert not prove_bits(rule("cast(x, dtype='float32') => x; exact" + when))[0]


def test_integers_count_where_a_rule_matches_them() -> None:
    wrong = rule("abs(x) => maximum(x, neg(x)); exact")  # true of int8, not of uint8 (and NaN)
    assert not prove_bits(wrong)[0]
    assert not prove_bits(rule("abs(x) => maximum(x, neg(x))"))[0]
    assert prove_bits(rule("abs(x) => maximum(x, neg(x)) if floating(x)"))[0]


@pytest.mark.parametrize(
    "text", ["x @ y => x @ y", "sum(x, axes=k) => sum(x, axes=k)", "cast(x, dtype=d) => cast(x, dtype=d)"]
)
def test_what_is_not_elementwise_is_left_to_others(text: str) -> None:
    assert not prove_bits(rule(text))[0]


def test_types_are_part_of_a_proof() -> None:
    assert not prove_bits(rule("maximum(a, minimum(a, b)) => a"))[0]  # b may be larger than a
    assert verdict(rule("x + y => y + x"), samples=6).status == "proved"


# ---------------------------------------------------------------- linear piece by piece
LINEAR = ("maximum(x + z, y + z) => maximum(x, y) + z", "maximum(x, neg(x)) => abs(x)", "x - relu(x) => minimum(x, x - x)",
          "relu(x) - relu(neg(x)) => x", "maximum(x, y) + minimum(x, y) => x + y")  # fmt: skip
NOT = ("maximum(x + z, y) => maximum(x, y) + z", "relu(x + y) => relu(x) + relu(y)", "abs(x + y) => abs(x) + abs(y)",
       "x * y => y * x", "maximum(x, 1.0) => maximum(x, 1.0)", "maximum(x + x, y + y + y) => maximum(x + x, y + y)")  # fmt: skip


@pytest.mark.parametrize("text", LINEAR)
def test_grids_decide(text: str) -> None:
    assert decides(rule(text))


@pytest.mark.parametrize("text", NOT)
def test_grids_refute_or_do_not_apply(text: str) -> None:
    assert not decides(rule(text))


TERMS = st.recursive(
    st.sampled_from(["x", "y"]),
    lambda t: st.one_of(
        st.tuples(st.sampled_from(["maximum", "minimum", "add", "sub"]), t, t).map(lambda p: f"{p[0]}({p[1]}, {p[2]})"),
        st.tuples(st.sampled_from(["neg", "relu", "abs"]), t).map(lambda p: f"{p[0]}({p[1]})"),
    ),
    max_leaves=4,
)


@settings(deadline=None, max_examples=60)
@given(TERMS, TERMS)
def test_what_a_grid_decides_holds_at_random_points(left: str, right: str) -> None:
    """A difference anywhere is one on the grid: where the grid sees none, random points see none either."""
    import numpy as np

    from tensor_graphs.egraph.evaluate.interpret import evaluate
    from tensor_graphs.rules.check.piecewise_linear import _tensor

    one = Rule("one", f"{left} + x - x + y - y", f"{right} + x - x + y - y")
    sides = [_tensor(t, (500,)) for t in (*one.lefts, *one.rights)]
    data = {
        n: np.random.default_rng(i).integers(-(1 << 20), 1 << 20, 500).astype(np.float64) for i, n in enumerate("xy")
    }
    a, b = evaluate(sides, data, float64=True)
    if decides(one):
        assert np.array_equal(a, b)
    elif np.array_equal(a, b):
        assert left != right
