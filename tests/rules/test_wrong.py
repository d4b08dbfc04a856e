"""Wrong rules are refuted with a counterexample, malformed ones are errors."""

from __future__ import annotations

import random
import re

import pytest

from tensor_graphs.egraph.patterns.rule import Rule, table
from tensor_graphs.errors import RuleError
from tensor_graphs.rules.check.check import check, mutate_guards, require
from tensor_graphs.rules.semantics.sample import instances

#: name: (left, right, more fields). Each is a mistake that somebody could make.
WRONG: dict[str, tuple[object, object, dict[str, object]]] = {
    "sub commutes": ("x - y", "y - x", {}),
    "div commutes": ("x / y", "y / x", {}),
    "sub associates": ("(x - y) - z", "x - (y - z)", {}),
    "matmul commutes": ("a @ b", "b @ a", {}),
    "transpose keeps the order": ("permute(a @ b, perm=p)", "permute(a, perm=p) @ permute(b, perm=p)",
                                  {"when": ("p == swap_last(rank(a))", "rank(a) == rank(b)")}),
    "a bound that random values do not reach": ("minimum(x, lit(1e30, x))", "x", {}),
    "a threshold beside random values": ("where(lt(x, 77.0), x, 77.0)", "x", {"when": ("floating(x)",)}),
    "halves of denormals as exact": ("(x * 0.5) * 2.0", "x", {"exact": True}),
    "a difference of infinities as exact": ("eq(x - y, lit(0.0, x))", "eq(x, y)", {"exact": True}),
    "x/x is one": ("x / x", "lit(1.0, x) + (x - x)", {}),
    "product with zero as exact": ("x * 0.0", "x - x", {"exact": True}),
    "difference with itself as exact": ("x - x", "x * lit(0.0, x)", {"exact": True}),
    "x + 0 as exact": ("x + 0.0", "x", {"exact": True}),
    "zero is neutral for products": ("x * 0.0", "x", {}),
    "relu through a negative scale": ("relu(neg(x))", "neg(relu(x))", {}),
    "relu through any scale": ("relu(x * s)", "relu(x) * s", {"when": ("scalar(s)",)}),
    "relu of a sum": ("relu(x + y)", "relu(x) + relu(y)", {}),
    "exp of a product": ("exp(x * y)", "exp(x) * exp(y)", {}),
    "square root of a square": ("sqrt(x * x)", "x", {}),
    "square of a square root": ("sqrt(x) * sqrt(x)", "x", {}),
    "square of a reciprocal root": ("rsqrt(x) * rsqrt(x)", "recip(x)", {}),
    "log of a product": ("log(x * y)", "log(x) + log(y)", {}),
    "exp after log": ("exp(log(x))", "x", {}),
    "associativity as exact": ("(x + y) + z", "x + (y + z)", {"exact": True}),
    "distribution as exact": ("x * (y + z)", "x * y + x * z", {"exact": True}),
    "maximum commutes to the bit": ("maximum(x, y)", "maximum(y, x)", {"exact": True}),
    "cancelling as exact": ("(x + y) - y", "x", {"exact": True, "when": ("shape(x) == shape(y)",)}),
    "cancelling changes the shape": ("(x + y) - y", "x", {}),
    "sum over the wrong axes": ("sum(permute(x, perm=p), axes=k)", "permute(sum(x, axes=k), perm=p)", {}),
    "factor leaves a sum": ("sum(x * s, axes=k)", "sum(x, axes=k) * s", {}),
    "factor leaves a maximum": ("max(x * s, axes=k)", "max(x, axes=k) * s", {"when": ("scalar(s)",)}),
    "mean of parts": ("mean(concat(x, y, axis=i), axes=k)", "mean(x, axes=k) + mean(y, axes=k)", {"when": ("k == (i,)",)}),
    "softmax ignores any summand": ("softmax(x + s, axis=i)", "softmax(x, axis=i)", {"when": ("fits(s, x)",)}),
    "softmax ignores a factor": ("softmax(x * s, axis=i)", "softmax(x, axis=i)", {"when": ("scalar(s)",)}),
    "permutations composed the wrong way": ("permute(permute(x, perm=p), perm=q)", "permute(x, perm=compose(q, p))", {}),
    "slice of a permutation at the same axis": ("slice(permute(x, perm=p), axis=i, start=s, stop=e)",
                                                "permute(slice(x, axis=i, start=s, stop=e), perm=p)", {}),
    "slices add stops": ("slice(slice(x, axis=i, start=a, stop=b), axis=i, start=c, stop=d)",
                         "slice(x, axis=i, start=a + c, stop=b + d)", {}),
    "slice of the first part, unguarded": ("slice(concat(x, y, axis=i), axis=i, start=s, stop=e)",
                                           "slice(x, axis=i, start=s, stop=e)", {}),
    "concat commutes": ("concat(x, y, axis=i)", "concat(y, x, axis=i)", {}),
    "reshape and permute commute": ("reshape(permute(x, perm=p), shape=s)", "reshape(x, shape=s)", {}),
    "flip of a slice": ("flip(slice(x, axis=i, start=a, stop=b), axis=i)", "slice(flip(x, axis=i), axis=i, start=a, stop=b)", {}),
    "row scale without its guard": ("(x * r) @ w", "(x @ w) * r", {}),
    "merged columns swapped": (("x @ a", "x @ b"),
                               ("slice(x @ concat(b, a, axis=1), axis=rank(x) - 1, start=0, stop=size(a, 1))",
                                "slice(x @ concat(b, a, axis=1), axis=rank(x) - 1, start=size(a, 1), stop=size(a, 1) + size(b, 1))"),
                               {"when": ("weight(a)", "weight(b)", "rank(a) == 2", "rank(b) == 2")}),
    "stacked rows swapped": ("x @ a + y @ b", "concat(x, y, axis=rank(x) - 1) @ concat(b, a, axis=0)",
                             {"when": ("rank(a) == 2", "rank(b) == 2", "shape(x) == shape(y)", "shape(a) == shape(b)")}),
    "padding enters a convolution on the wrong axis": (
        "conv(pad(x, axis=2, lo=l, hi=h), w, strides=s, pads=p, dilations=d, groups=g)",
        "conv(x, w, strides=s, pads=replace(replace(p, 1, p[1] + l), 3, p[3] + h), dilations=d, groups=g)",
        {"when": ("rank(x) == 4",)}),
    "padding with any value enters a convolution": (
        "conv(pad(x, axis=2, lo=l, hi=h, value=v), w, strides=s, pads=p, dilations=d, groups=g)",
        "conv(x, w, strides=s, pads=replace(replace(p, 0, p[0] + l), 2, p[2] + h), dilations=d, groups=g)",
        {"when": ("rank(x) == 4",)}),
    "grouped convolutions side by side": (
        "concat(conv(x, a, strides=s, pads=p, dilations=d, groups=g), conv(x, b, strides=s, pads=p, dilations=d, groups=g), axis=1)",
        "conv(x, concat(a, b, axis=0), strides=s, pads=p, dilations=d, groups=g)",
        {"when": ("drop(shape(a), 0) == drop(shape(b), 0)",)}),
    "a shift enters a padded convolution": (
        "conv(x + b, w, strides=s, pads=p, dilations=d, groups=1)",
        "conv(x, w, strides=s, pads=p, dilations=d, groups=1) + conv(b + x * lit(0.0, x), w, strides=s, pads=(0, 0, 0, 0), dilations=d, groups=1)",
        {"when": ("volume(b) == size(b, 1)", "size(x, 1) == size(b, 1)")}),
    "attention without its scale": ("softmax((q @ t) * full(value=c, shape=s, dtype=d), axis=i) @ v",
                                    "attention(q, permute(t, perm=swap_last(rank(t))), v, scale=1.0)",
                                    {"when": ("rank(q) == rank(t)", "rank(t) == rank(v)", "2 < rank(q)", "i == rank(q) - 1")}),
    "attention over the wrong axis": ("softmax(q @ t, axis=i) @ v", "attention(q, permute(t, perm=swap_last(rank(t))), v, scale=1.0)",
                                      {"when": ("rank(q) == rank(t)", "rank(t) == rank(v)", "2 < rank(q)")}),
    "rope with its halves swapped": (
        "x * c + concat(slice(x, axis=i, start=h, stop=n), neg(slice(x, axis=i, start=0, stop=h)), axis=i) * s", "rope(x, c, s)",
        {"when": ("floating(x)", "i == rank(x) - 1", "n == size(x, -1)", "h + h == n", "fits(c, x)", "fits(s, x)")}),
    "integers do not wrap around": ("maximum(x + z, y + z)", "maximum(x, y) + z", {}),
    "a narrowing cast and back": ("cast(cast(x, dtype='int8'), dtype='int32')", "x", {"when": ("dtype(x) == 'int32'",)}),
    "a rounding cast and back": ("cast(cast(x, dtype='float16'), dtype='float32')", "x",
                                 {"when": ("dtype(x) == 'float32'",), "exact": True}),
    "argmax of a negated value": ("argmax(neg(x), axis=i)", "argmax(x, axis=i)", {}),
    "argmax from behind, through ties": ("argmax(x, axis=i)", "argmax(maximum(x, flip(x, axis=i)), axis=i)", {}),
    "where with its branches swapped": ("where(c, x, y)", "where(c, y, x)", {}),
    "not of an integer, twice": ("not_(not_(c))", "c", {}),
    "wrong dtype of a constant": ("x + x", "x * full(value=2.0, shape=ones(rank(x)), dtype='float32')", {}),
    "wrong rank of a constant": ("x + x", "x * full(value=2.0, shape=(1,), dtype=dtype(x))", {}),
    "gather through a table of another size": ("concat(gather(a, n, axis=0), gather(b, n, axis=0), axis=i)",
                                               "gather(concat(a, b, axis=1), n, axis=0)", {"when": ("rank(a) == 2", "rank(b) == 2")}),
}  # fmt: skip


def rule(name: str) -> Rule:
    left, right, more = WRONG[name]
    return Rule(name, left, right, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", WRONG)
def test_wrong_rule_is_refuted(name: str) -> None:
    verdict = check(rule(name), samples=120)
    assert verdict.status == "refuted", verdict
    assert verdict.counterexample and verdict.detail


def test_there_are_many() -> None:
    assert len(WRONG) >= 30


def test_counterexample_shows_shapes_values_and_both_results() -> None:
    text = check(rule("sub commutes")).counterexample
    assert all(part in text for part in ("x: ", "x = ", "y = ", "left  = ", "right = "))
    large = check(Rule("root of a square", "sqrt(x * x)", "x")).counterexample
    assert re.search(r"at \[\d.*\]: left ([\d.]+), right -\1$", large) and len(large.splitlines()) < 50


def test_require_raises_with_the_counterexample() -> None:
    with pytest.raises(RuleError, match="the rule is wrong") as caught:
        require(rule("sub commutes"))
    assert "left" in str(caught.value) and caught.value.hint
    assert require(Rule("add", "x + y", "y + x", exact=True)).status == "tested"


def test_same_seed_same_verdict() -> None:
    assert check(rule("factor leaves a sum"), seed=4) == check(rule("factor leaves a sum"), seed=4)


def test_true_rules_are_not_refuted_by_poles_or_cancellation() -> None:
    for left, right in (("(x + y) / z", "x / z + y / z"), ("recip(x / y)", "y / x"), ("sigmoid(x * 2.0) * 2.0 - 1.0", "tanh(x)"),
                        ("(x - y) + y", "x + (y - y)"), ("log(exp(x))", "x")):  # fmt: skip
        verdict = check(Rule("true", left, right, when=("floating(x)",)), samples=60)
        assert verdict.status == "tested", verdict


def test_unknown_where_nothing_can_be_sampled() -> None:
    impossible = Rule("never", "x + y", "y + x", when=("rank(x) == rank(y) + 1",))
    assert check(impossible, attempts=200).status == "unknown"


def test_redundant_and_needed_guards_are_told_apart() -> None:
    found = dict(mutate_guards(Rule("r", "(x * r) @ w", "(x @ w) * r", when=("size(r, -1) == 1", "1 < rank(x)"))))
    assert found["size(r, -1) == 1"].status == "refuted"
    assert found["1 < rank(x)"].status != "refuted"


def test_cost_guards_are_not_about_truth() -> None:
    free = Rule("r", "x @ w", "(x * lit(1.0, x)) @ w", when=("weight(w)", "active(x)", "floating(x)"))
    assert [text for text, _ in mutate_guards(free)] == ["floating(x)"]


MALFORMED = {
    "unknown op": Rule("r", "frobnicate(x)", "x"),
    "unbound tensor": Rule("r", "x + x", "x + y"),
    "unbound attribute": Rule("r", "neg(x)", "permute(neg(x), perm=p)"),
    "unbound in a guard": Rule("r", "neg(x)", "x", when=("rank(y) == 1",)),
    "bare left side": Rule("r", "x", "neg(neg(x))"),
    "bare right side of a two-way rule": Rule("r", "neg(neg(x))", "x", both=True),
    "missing attribute": Rule("r", "permute(x)", "x"),
    "an axis from the end": Rule("r", "softmax(softmax(x, axis=-1), axis=-1)", "softmax(x, axis=-1)"),
    "axes from the end": Rule("r", "abs(sum(abs(x), axes=(0, -1)))", "sum(abs(x), axes=(0, -1))"),
    "attribute of another op": Rule("r", "neg(x, axis=1)", "x"),
    "too many operands": Rule("r", "neg(x, y)", "x"),
    "not an expression": Rule("r", "x +", "x"),
    "a statement": Rule("r", "x = y", "x"),
    "call of something else": Rule("r", "__import__('os')", "x"),
    "an attribute chain": Rule("r", "x.y + x", "x"),
    "sides of different counts": Rule("r", ("x + y", "y + x"), "x"),
    "unknown function in a guard": Rule("r", "x + y", "y + x", when=("positive(x)",)),
    "a comprehension": Rule("r", "permute(x, perm=[i for i in p])", "x"),
    "a word as number": Rule("r", "x + x", "x * lit(two, x)"),
    "chained comparison": Rule("r", "x + y", "y + x", when=("0 < rank(x) < 3",)),
}  # fmt: skip


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_rule_is_a_rule_error(name: str) -> None:
    with pytest.raises(RuleError):
        check(MALFORMED[name])
    with pytest.raises(RuleError):
        table("family", "algebra", [MALFORMED[name]])


def test_two_way_rules_are_sampled_by_direction() -> None:
    both = Rule("r", "x + neg(y)", "x - y", both=True)
    with pytest.raises(RuleError, match="one direction"):
        next(instances(both, random.Random(0), 1))
    assert [len(list(instances(d, random.Random(0), 2))) for d in both.directions] == [2, 2]


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("abs(neg(x))", "abs(x)"),
        ("maximum(x, neg(x))", "abs(x)"),
        ("not_(not_(x))", "x"),
        ("max(x, axes=k)", "sum(x, axes=k)"),
    ],
)
def test_rules_that_one_dtype_or_no_elements_violate_are_refuted_by_every_seed(left: str, right: str) -> None:
    """Unsigned integers wrap, truth values are 0 and 1, and the maximum of no numbers is minus infinity."""
    when = ("len(k) == 1", "size(x, k[0]) <= 1", "floating(x)") if "axes" in left else ()
    assert {check(Rule("r", left, right, when), seed=seed, samples=8).status for seed in range(8)} == {"refuted"}
