"""Proofs with functions, maxima and named sums: what is proved, that nothing wrong is, and the evaluations beside
them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tensor_graphs.egraph.builders import builders as api
from tensor_graphs.egraph.composites.composite import expand
from tensor_graphs.egraph.evaluate.interpret import expand_all
from tensor_graphs.egraph.ir.tensor import Tensor, make, topological
from tensor_graphs.egraph.patterns.pattern import build
from tensor_graphs.egraph.patterns.rule import Rule
from tensor_graphs.rules import EVERY
from tensor_graphs.rules.check.piecewise_linear import decides_at
from tensor_graphs.rules.semantics.exponents import sure
from tensor_graphs.rules.semantics.prime_field import BITS, agreement, unrectified
from tensor_graphs.rules.semantics.solver import OutOfScope
from tensor_graphs.rules.smt import prove as smt
from tensor_graphs.rules.smt.decompositions import names_of, pattern_of, size_name
from tensor_graphs.rules.smt.unknowns import IllTyped

_UNIT = "cast(eq(iota(axis=0, shape=s, dtype='int64'), iota(axis=1, shape=s, dtype='int64')), dtype=f)"
_POOL = "kernel=k, strides=t, pads=p, dilations=d"
_HEADS = ("rank(q) == rank(t)", "rank(t) == rank(v)", "2 < rank(q)")
WRONG: list[tuple[str, str, tuple[str, ...]]] = [
    ("exp(x) * exp(y)", "exp(x * y)", ()),
    ("tanh(neg(x))", "tanh(x)", ()),
    ("cos(neg(x))", "neg(cos(x))", ()),
    ("log(recip(a))", "log(a)", ()),
    ("pow(x, 3.0)", "x * x", ()),
    ("sqrt(x * x)", "x", ("floating(x)",)),
    ("relu(cos(x))", "cos(relu(x))", ()),
    ("tanh(relu(x))", "tanh(x)", ()),
    ("relu(relu(x) @ y)", "relu(x) @ y", ()),
    ("max(x, axes=k)", "min(x, axes=k)", ()),
    ("max(neg(x), axes=k)", "neg(max(x, axes=k))", ("floating(x)",)),
    ("max(x + s, axes=k)", "max(x, axes=k) + s", ("floating(x)", "len(k) == 1")),
    ("max(x * c, axes=k)", "max(x, axes=k) * c", ("scalar(c)",)),
    ("max(max(x, axes=j), axes=k)", "max(x, axes=j)", ()),
    ("recip(max(x, axes=k))", "max(recip(x), axes=k)", ()),
    (f"max_pool(neg(x), {_POOL})", f"neg(max_pool(x, {_POOL}))", ()),
    (f"tanh(max_pool(x, {_POOL}))", f"max_pool(tanh(x), {_POOL})", ()),  # a window of padding alone
    ("mean(x, axes=k)", "x", ("len(k) == 1",)),
    ("exp(sum(x, axes=k))", "sum(exp(x), axes=k)", ()),
    ("sum(x, axes=k) * sum(x, axes=k)", "sum(x * x, axes=k)", ()),
    ("softmax(x * s, axis=i)", "softmax(x, axis=i)", ("size(s, i) == 1", "fits(s, x)")),
    ("softmax(x + s, axis=i)", "softmax(x, axis=i)", ("fits(s, x)",)),
    ("exp(x) / sum(exp(y), axes=k)", "softmax(x, axis=k[0])", ("len(k) == 1", "shape(x) == shape(y)")),
    (
        "softmax(q @ t, axis=i) @ v",
        "attention(q, permute(t, perm=swap_last(rank(t))), v, scale=0.5)",
        (*_HEADS, "i == rank(q) - 1"),
    ),
    (f"x @ {_UNIT}", "x", ("len(s) == 2",)),
    ("rms_norm(x * s, g, eps=e)", "rms_norm(x, g, eps=e)", ("scalar(s)", "rank(s) == rank(x)")),
    ("batch_norm(x, g, b, m, v, eps=e)", "batch_norm(x, g, b, v, m, eps=e)", ()),
    ("x + reshape(b, shape=s)", "x + b", ("rank(b) == 2", "fits(b, x)")),
    (
        "permute(x, perm=p)",
        "reshape(x, shape=permuted(shape(x), p))",
        ("p == swap_last(rank(x))",),
    ),  # two axes that are not 1
    ("reshape(x + y, shape=s)", "reshape(x, shape=s) + reshape(y, shape=s)", ()),
    (
        "reshape(softmax(x, axis=i), shape=s)",
        "softmax(reshape(x, shape=s), axis=0)",
        ("i == rank(x) - 1", "s[-1] == size(x, -1)"),
    ),
    ("reshape(flip(x, axis=0), shape=s)", "flip(reshape(x, shape=s), axis=0)", ()),
    (
        "(x @ w) * g",
        "x @ (w * reshape(g, shape=(1, size(g, -1))))",
        ("rank(w) == 2", "volume(g) == size(g, -1)"),
    ),  # no elements
    ("gather(gather(x, m, axis=0), n, axis=0)", "gather(x, gather(n, m, axis=0), axis=0)", ("rank(m) == 1",)),
    (
        "concat(gather(a, n, axis=0), gather(b, n, axis=0), axis=i)",
        "gather(concat(a, b, axis=1), n, axis=0)",
        ("i == rank(n)",),
    ),
    ("log(x * y)", "log(x) + log(y)", ()),  # both negative
    ("log(exp(x) * y)", "x * log(y)", ()),
    ("exp(min(x, axes=k))", "max(exp(x), axes=k)", ()),
    ("logsumexp(x, axes=k)", "log(sum(x, axes=k))", ()),
    (
        "where(lt(0.0, x), x, x * full(value=a, shape=s, dtype=d))",
        "elu(x, alpha=a)",
        ("floating(x)", "s == ones(rank(x))"),
    ),
    ("cast(c, dtype=d) * cast(b, dtype=d)", "cast(c, dtype=d)", ("dtype(c) == 'bool'", "dtype(b) == 'bool'")),
]
PROVED = ("exp-product", "exp-recip", "log-recip", "tanh-odd", "cos-even", "power-three", "recip-sqrt", "relu-of-matmul", "relu-tanh",
          "max-summand", "concat-max-pools", "mean-of-one", "is-softmax", "softmax-shift",
          "is-attention", "exp-of-log-softmax", "gather-concat", "is-rope", "is-clip",
          "is-leaky-relu", "heads-of-one-row", "fold-output-gain", "diagonal-transposed", "linear-is-matmul", "sigmoid-complement")  # fmt: skip


@pytest.mark.parametrize(("left", "right", "when"), WRONG)
def test_no_wrong_rule_is_proved(left: str, right: str, when: tuple[str, ...]) -> None:
    assert not smt.prove(Rule("wrong", left, right, when=when))[0]


def test_models_of_earlier_queries_answer_most_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong rule with 476 queries, of which z3 answers about 50."""
    z3 = pytest.importorskip("z3")
    solvers, made = [], z3.Solver
    monkeypatch.setattr(z3, "Solver", lambda: solvers.append(made()) or solvers[-1])
    wrong = Rule("wrong", "layer_norm(x, g, b, eps=e)", "layer_norm(x, b, g, eps=e)")
    assert not smt.prove(wrong)[0]
    assert 20 < len(solvers) < 100


@pytest.mark.parametrize("name", PROVED)
def test_proved(name: str) -> None:
    (rule,) = (r for r in EVERY if r.name == name)
    assert all(smt.prove(one)[0] for one in rule.directions)


#: Composite ops over axes, with operand shapes and attributes.
DECOMPOSED: dict[str, tuple[list[tuple[int, ...]], dict[str, Any]]] = {
    "softmax": ([(2, 3, 4)], {"axis": 1}),
    "log_softmax": ([(2, 3)], {"axis": 0}),
    "layer_norm": ([(2, 3, 4), (4,), (4,)], {"eps": 1e-5}),
    "rms_norm": ([(2, 4), (4,)], {"eps": 1e-6}),
    "batch_norm": ([(2, 3, 5, 4), (3,), (3,), (3,), (3,)], {"eps": 1e-3}),
    "group_norm": ([(2, 6, 5), (6,), (6,)], {"groups": 2, "eps": 1e-3}),
    "attention": ([(1, 3, 4), (2, 5, 4), (2, 5, 6)], {"scale": 0.5}),
    "masked_attention": ([(2, 3, 4), (2, 5, 4), (1, 5, 6), (1, 3, 5)], {"scale": 0.5}),
    "rope": ([(2, 3, 8), (1, 3, 8), (3, 8)], {}),
}


@pytest.mark.parametrize("op", DECOMPOSED)
def test_patterns_of_composite_ops_are_their_decompositions(op: str) -> None:
    """The pattern, derived at unknown sizes and numbers, stands for the decomposition at given ones."""
    shapes, attrs = DECOMPOSED[op]
    shapes = [s if op != "rope" else (1,) * (3 - len(s)) + s for s in shapes]
    entry = smt.OPS[op]
    operands = {n: api.input(n, s) for n, s in zip(names_of(entry), shapes)}
    every = {**entry.defaults, **attrs}
    unknown = {n: object() if n in ("eps", "scale") else v for n, v in every.items()}
    found = pattern_of(entry, [len(s) for s in shapes], unknown)
    sizes = {size_name(axis): size for axis, size in enumerate(shapes[0])}
    assert build(found, operands, {**every, **sizes}) is expand(make(op, tuple(operands.values()), attrs))


def test_decompositions_that_compute_with_an_unknown_number_have_no_pattern() -> None:
    every = {**smt.OPS["attention"].defaults, "scale": 0.5, "softcap": object()}
    with pytest.raises(OutOfScope, match="computes with an attribute"):
        pattern_of(smt.OPS["attention"], (3, 3, 3), every)
    for op, ranks in (("rms_norm", (3, 2)), ("rms_norm", (0, 1)), ("rope", (0, 0, 0)), ("batch_norm", (1, *(1,) * 4))):
        with pytest.raises(IllTyped):
            pattern_of(smt.OPS[op], ranks, {**smt.OPS[op].defaults})


# ---------------------------------------------------------------- evaluations
def _sides(*sides: Tensor) -> tuple[list[Tensor], list[tuple[Tensor, Tensor]]]:
    roots = expand_all(list(sides))
    return topological(roots), list(zip(roots[::2], roots[1::2]))


X, Y = api.input("x", (2, 3), "float64"), api.input("y", (2, 3), "float64")


def test_exponentials_modulo_two_numbers() -> None:
    rng = np.random.default_rng(0)
    total = api.sum(api.exp(X), 1, True)
    shifted = api.exp(X - api.max(X, 1, True))
    assert sure(*_sides(api.exp(X) * api.exp(Y), api.exp(X + Y)), rng) >= BITS
    assert sure(*_sides(api.exp(X) / total, shifted / api.sum(shifted, 1, True)), rng) >= BITS
    assert sure(*_sides(api.log(api.exp(X) * api.exp(Y)), X + Y), rng) >= BITS
    assert sure(*_sides(api.exp(X) * api.exp(Y), api.exp(X - Y)), rng) < 0
    assert sure(*_sides(api.exp(X) / total, shifted / total), rng) < 0
    assert sure(*_sides(api.exp(X * Y), api.exp(Y * X)), rng) == 0  # the degree of an exponent is not bounded


def test_an_evaluation_that_differs_is_no_evaluation_that_does_not_apply() -> None:
    rng = np.random.default_rng(0)
    assert agreement(*_sides(X * Y, Y * X), rng) >= BITS
    assert agreement(*_sides(X * Y, X + Y), rng) < 0
    empty = api.input("e", (0, 3), "float64")
    assert agreement(*_sides(empty * empty, empty + empty), rng) == 0
    both = (api.maximum(api.tanh(X), 0.0), api.tanh(api.maximum(X, 0.0)))
    assert agreement(*_sides(*both), rng, orders=64) < 0  # a random order knows nothing of signs


def test_functions_that_keep_signs_leave_rectifiers() -> None:
    from tensor_graphs.egraph.composites.composite_ops import relu

    a, b = unrectified([relu(api.tanh(X)), relu(X * relu(Y))])
    assert a is api.tanh(relu(X))
    assert b is relu(X) * relu(Y)


def test_points_that_decide() -> None:
    x, s = api.input("x", (1, 2), "float64"), api.input("s", (1, 1), "float64")
    assert decides_at(*_sides(api.max(x + s, 1, True), api.max(x, 1, True) + s))
    assert not decides_at(*_sides(api.max(x + s, 1, True), api.max(x, 1, True) - s))
    wide = api.input("x", (2, 4), "float64")
    assert decides_at(*_sides(api.max(api.max(wide, 0, True), 1, True), api.max(api.max(wide, 1, True), 0, True)))
    assert not decides_at(*_sides(api.max(api.min(wide, 0, True), 1, True), api.min(api.max(wide, 1, True), 0, True)))
    assert not decides_at(*_sides(x * x, x * x))  # not linear
