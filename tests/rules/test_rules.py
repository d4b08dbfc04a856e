"""Every rule in force survives falsification, and each of its conditions is needed."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tensor_graphs import rules
from tensor_graphs.egraph.ops.ops import Type
from tensor_graphs.egraph.patterns.pattern import PatternCall, subterms
from tensor_graphs.egraph.patterns.rule import Rule
from tensor_graphs.rules.check.check import LIMITS, check, judge, mutate_guards
from tensor_graphs.rules.semantics.instance import Instance
from tensor_graphs.rules.semantics.sample import instances

BY_NAME = {r.name: r for r in rules.EVERY}
GROWTH = ("collects", "rearranges", "expands")


@pytest.mark.parametrize("rule", rules.EVERY, ids=lambda r: r.name)
def test_rule_is_sampled_and_not_refuted(rule: Rule) -> None:
    """On two random instances in each direction, modulo primes, in float64 and at corner values."""
    verdict = check(rule, samples=2)
    assert verdict.status == "tested", verdict


def test_rules_are_documented() -> None:
    documented = lambda r: r.doc and r.family and r.growth in GROWTH and r.name == r.name.lower() and " " not in r.name
    assert not [r for r in rules.EVERY if not documented(r)]


#: Instances that violate one guard alone, where random search would need long to meet one.
RARE = {
    ("group-queries", "k3 == (size(k, 0), size(k, 1) * k2[2], size(k, 2), size(k, 3))"): {
        "q": (1, 1, 1, 2), "k": (1, 1, 2, 3), "v": (1, 1, 3, 2), "k1": (1, 1, 1, 2, 3), "k2": (1, 1, 1, 2, 3), "k3": (1, 1, 3, 2),
        "v1": (1, 1, 1, 3, 2), "v2": (1, 1, 1, 3, 2), "v3": (1, 1, 3, 2)},
    ("group-queries", "v3 == (size(v, 0), size(v, 1) * k2[2], size(v, 2), size(v, 3))"): {
        "q": (1, 1, 1, 2), "k": (1, 1, 3, 2), "v": (1, 1, 2, 3), "k1": (1, 1, 1, 3, 2), "k2": (1, 1, 1, 3, 2), "k3": (1, 1, 3, 2),
        "v1": (1, 1, 1, 2, 3), "v2": (1, 1, 1, 2, 3), "v3": (1, 1, 3, 2)},
    ("group-queries", "size(q, 1) == size(k, 1) * k2[2]"): {
        "q": (1, 1, 1, 2), "k": (1, 2, 3, 2), "v": (1, 2, 3, 2), "k1": (1, 2, 1, 3, 2), "k2": (1, 2, 1, 3, 2), "k3": (1, 2, 3, 2),
        "v1": (1, 2, 1, 3, 2), "v2": (1, 2, 1, 3, 2), "v3": (1, 2, 3, 2)},
    ("group-queries", "v2 == replace(v1, 2, k2[2])"): {
        "q": (1, 3, 3, 1), "k": (1, 1, 3, 1), "v": (1, 1, 3, 1), "k1": (1, 1, 1, 3, 1), "k2": (1, 1, 3, 3, 1), "k3": (1, 3, 3, 1),
        "v1": (1, 1, 1, 3, 1), "v2": (1, 1, 1, 3, 3), "v3": (1, 3, 3, 1)},
    ("group-queries", "size(v, 1) == size(k, 1)"): {
        "q": (1, 1, 1, 2), "k": (1, 1, 3, 2), "v": (1, 2, 3, 2), "k1": (1, 1, 1, 3, 2), "k2": (1, 1, 1, 3, 2), "k3": (1, 1, 3, 2),
        "v1": (1, 2, 1, 3, 2), "v2": (1, 2, 1, 3, 2), "v3": (1, 2, 3, 2)},
}  # fmt: skip
#: Masks wider than the scores at one leading axis, per rank: (q and k, v, m).
WIDE_MASKS = {
    "contains((1, size(q, 0)), size(m, 0))": (1, 1, 1, 2, 2),
    "contains((1, size(q, max(0, rank(q) - 4))), size(m, max(0, rank(q) - 4)))": (1, 1, 1, 2, 2),
    "contains((1, size(q, rank(q) - 3)), size(m, rank(q) - 3))": (1, 1, 1, 2, 2),
    "rank(q) < 6": (1, 1, 1, 1, 2, 2),
}


def made(shapes: dict[str, tuple[int, ...]], bools: str = "", **attrs: object) -> Instance:
    """A float32 instance: shapes of one letter are tensors (`bools`: those of truth values), the others attributes."""
    tensors = {n: Type(s, "bool" if n in bools else "float32") for n, s in shapes.items() if len(n) == 1}
    vectors = {n: s for n, s in shapes.items() if len(n) > 1}
    return Instance(tensors, {**vectors, **attrs}, frozenset())


@pytest.mark.parametrize(("name", "guard"), RARE)
def test_rare_guard_is_needed(name: str, guard: str) -> None:
    found = made(RARE[name, guard], c=0.5, z=False, w=0, y=0.0)
    assert judge(BY_NAME[name], found).status == "refuted"
    assert guard in BY_NAME[name].when


@pytest.mark.parametrize("name", ["sqrt-of-square", "div-div", "recip-product"])
def test_products_that_vanish_refute_nothing(name: str) -> None:
    """The square of 1e-300 is no number of float64: that is no counterexample."""
    rule = BY_NAME[name]
    for seed in (1000, 1001):
        assert check(rule, seed=seed, samples=60).status == "tested"


def test_mean_over_no_rows_of_a_product_over_nothing() -> None:
    rule = BY_NAME["mean-of-product"].directions[0]
    found = made({"a": (0, 0), "w": (0, 1)}, k=(0,))
    assert judge(rule, found).status == "refuted"
    assert rule.when == ("k == (rank(a) - 2,)", "0 < size(a, -2)")
    assert dict(mutate_guards(rule))["k == (rank(a) - 2,)"].status == "refuted"


@pytest.mark.parametrize("kind", ["masked", "hiding"])
@pytest.mark.parametrize("guard", WIDE_MASKS)
def test_mask_guard_is_needed(guard: str, kind: str) -> None:
    shape = WIDE_MASKS[guard]
    axis = {"rank(q) < 6": 1}.get(guard, 1 if "- 4" in guard else 2 if "- 3" in guard else 0)
    mask = (*shape[:axis], 3, *shape[axis + 1 :])
    rule = BY_NAME[f"is-{kind}-attention-unscaled"]
    more = {"n": (1,) * len(shape), "e": "float32"} if kind == "hiding" else {}
    found = made({"q": shape, "t": shape, "v": shape, "m": mask}, "m" if more else "", i=len(shape) - 1, **more)
    assert judge(rule, found).status == "refuted"
    assert guard in rule.when


def test_rows_of_a_convolution_by_nothing() -> None:
    rule = BY_NAME["rows-of-conv"]
    empty = Instance({"x": Type((1, 1, 4), "float32"), "w": Type((1, 1, 0), "float32")},
                     {"s": (1,), "p": (0, 0), "d": (3,), "g": 1, "a": 0, "b": 1, "q": 1}, frozenset())  # fmt: skip
    assert judge(rule, empty).status == "refuted"
    assert "0 < size(w, 2)" in rule.when


def test_a_padded_kernel_without_elements_is_not_cropped() -> None:
    rule = BY_NAME["crop-kernel-rows"]
    empty = Instance({"x": Type((1, 1, 4, 4), "float32"), "w": Type((1, 1, 0, 1), "float32")},
                     {"s": (1, 1), "p": (0, 0, 0, 0), "d": (1, 1), "g": 1, "l": 1, "h": 1}, frozenset())  # fmt: skip
    assert judge(rule, empty).status == "refuted"
    assert "0 < size(w, 2)" in rule.when


#: Rules whose guards RARE, WIDE_MASKS or a test of their own checks: random instances rarely violate them.
CHECKED_APART = (
    "group-queries", "is-masked-attention", "is-hiding-attention", "mean-of-product", "rows-of-conv", "columns-of-conv", "crop-kernel",
)  # fmt: skip
GUARDED = [rule for rule in rules.EVERY if rule.when and not rule.name.startswith(CHECKED_APART)]


@pytest.mark.parametrize("rule", GUARDED, ids=lambda r: r.name)
def test_each_guard_is_needed(rule: Rule) -> None:
    for text, verdict in mutate_guards(rule):
        assert verdict.status == "refuted", f"{rule.name}: {text}: {verdict}"


def test_growth_limits_name_guards_that_exist() -> None:
    for name, texts in LIMITS.items():
        assert set(texts) <= set(BY_NAME[name].when)


def test_sampling_is_deterministic() -> None:
    draw = lambda: [str(i) for i in instances(BY_NAME["merge-matmuls"], random.Random(3), 5)]
    assert draw() == draw()


def test_sampler_reaches_odd_shapes() -> None:
    rule = BY_NAME["add-commutes"]
    found = list(instances(rule, random.Random(0), 300))
    shapes = [i.types["x"].shape for i in found]
    assert any(0 in s for s in shapes) and any(1 in s for s in shapes) and () in shapes
    assert any(i.types["x"].shape != i.types["y"].shape for i in found)
    assert {"float32", "float64", "float16", "int64"} <= {i.types["x"].dtype for i in found}


SUMS = ("sum", "mean", "cumsum", "matmul", "linear", "conv", "avg_pool", "softmax", "log_softmax", "logsumexp", "attention",
        "masked_attention", "layer_norm", "rms_norm", "group_norm", "batch_norm")  # fmt: skip


def test_no_rule_of_sums_claims_to_keep_every_bit() -> None:
    """A sum over an axis that lies elsewhere in memory is added up in another order."""
    for rule in rules.EVERY:
        ops = {t.op for side in (*rule.lefts, *rule.rights) for t in subterms(side) if isinstance(t, PatternCall)}
        assert not (rule.exact and ops & set(SUMS)), rule.name
    x = np.random.default_rng(0).standard_normal((1000, 37))
    turned = np.ascontiguousarray(x.T)
    assert (x.sum(axis=0) != turned.sum(axis=1)).any()  # which is why
