"""Rule synthesis: what is found is true, general, independent and readable; what is wrong is not found."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest

from tensor_graphs.cli import app as cli
from tensor_graphs.egraph.builders import builders as api
from tensor_graphs.egraph.evaluate.interpret import evaluate
from tensor_graphs.egraph.patterns.pattern import build, variables
from tensor_graphs.egraph.patterns.pattern_parser import parse_guard, parse_term
from tensor_graphs.egraph.patterns.rule import Rule
from tensor_graphs.egraph.saturate.sessions import InProcess
from tensor_graphs.errors import UsageError
from tensor_graphs.rules.check.check import check
from tensor_graphs.rules.files import rule_file
from tensor_graphs.rules.semantics.sample import instances
from tensor_graphs.rules.synthesize.derivable import claim, derived
from tensor_graphs.rules.synthesize.generalize import generalise
from tensor_graphs.rules.synthesize.guards import weakest
from tensor_graphs.rules.synthesize.rule_candidates import RuleCandidate, as_rule, candidate
from tensor_graphs.rules.synthesize.synthesis_result import Synthesis, rule_line
from tensor_graphs.rules.synthesize.synthesize import minimise, synthesize
from tensor_graphs.rules.synthesize.term_values import PRIMES, residue
from tensor_graphs.rules.synthesize.terms import render
from tensor_graphs.rules.synthesize.universe import Equality, Universe, worlds

MATRICES = worlds(["matmul", "add", "concat", "split"], 3)[0]


# ---------------------------------------------------------------- terms and fingerprints
@pytest.mark.parametrize(
    "ops", ["matmul,add,transpose,concat,split,relu", "exp,mul,log,div,1,2", "sum,max,add,neg", "where,add,0"]
)
def test_equalities_hold_on_other_values(ops: str) -> None:
    (world,) = worlds(ops.split(","), 2, broadcast=True)
    universe = Universe(world, seed=0)
    rng = np.random.default_rng(5)
    leaves = {n: api.input(n, t.shape, t.dtype) for n, t in world.types.items()}
    data = {
        n: rng.random(t.shape) < 0.5 if t.dtype == "bool" else rng.uniform(0.3, 3, t.shape)
        for n, t in world.types.items()
    }
    found = [e for _ in range(2) for e in universe.grow()]
    assert found
    for e in random.Random(0).sample(found, min(len(found), 60)):
        sides = [build(t, leaves, {}) for t in (e.left, e.right)]
        if any(t.op == "full" for t in sides):
            continue
        with np.errstate(all="ignore"):
            a, b = evaluate(sides, data, float64=True)
        np.testing.assert_allclose(a, b, rtol=1e-9, err_msg=f"{render(e.left)} = {render(e.right)}")


def test_exact_values_tell_apart_what_float64_does_not() -> None:
    (world,) = worlds(["add", "mul", "1e-12"], 1)
    found = list(Universe(world, seed=0).grow())
    tiny = parse_term("add(a, 1e-12)")
    assert not any(e.left == tiny for e in found)  # equal to a up to rounding, but not modulo a prime


def test_residues_of_constants() -> None:
    for p in PRIMES:
        assert residue(1 / 3, p) * 3 % p == 1 and residue(0.5, p) * 2 % p == 1 and residue(-2.0, p) == p - 2


def test_only_one_term_of_a_value_is_built_upon() -> None:
    universe = Universe(MATRICES, seed=0)
    equal = {render(e.left) for e in universe.grow()}
    assert "add(b, a)" in equal and "add(b, a)" not in {render(e.term) for e in universe.by_size[1]}
    list(universe.grow())
    assert not any("add(b, a)" in render(e.term) for e in universe.by_size[2])


@pytest.mark.parametrize(
    "ops, message",
    [
        (["nonsense"], "nonsense"),
        (["gather"], "gather"),
        (["input"], "input"),
        (["1", "2"], "numbers"),
        (["attention"], "attention"),
    ],
)
def test_ops_without_terms(ops: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        worlds(ops, 2)


def test_too_many_variables() -> None:
    with pytest.raises(UsageError, match="1 to 4"):
        worlds(["add"], 5)
    with pytest.raises(UsageError, match="at least one op"):
        synthesize(("add",), 0)


# ---------------------------------------------------------------- generalisation
def at(left: str, right: str) -> RuleCandidate:
    return RuleCandidate(parse_term(left), parse_term(right), 3, False, "matrices")


GENERAL = {
    "axis and condition": ("concat(relu(a), relu(b), axis=0)", "relu(concat(a, b, axis=0))",
                           "concat(relu(a), relu(b), axis=i) -> relu(concat(a, b, axis=i))"),
    "offset": ("slice(concat(a, b, axis=0), axis=0, start=0, stop=size(a, 0))", "a",
               "slice(concat(a, b, axis=i), axis=i, start=0, stop=e1) -> a when e1 == size(a, i)"),
    "permutation": ("permute(add(a, b), perm=(1, 0))", "add(permute(a, perm=(1, 0)), permute(b, perm=(1, 0)))",
                    "permute(add(a, b), perm=p) -> add(permute(a, perm=p), permute(b, perm=p))"),
    "axis under a permutation": ("concat(permute(a, perm=(1, 0)), permute(b, perm=(1, 0)), axis=0)", "permute(concat(a, b, axis=1), perm=(1, 0))",
                                 "concat(permute(a, perm=p), permute(b, perm=p), axis=i) -> permute(concat(a, b, axis=p[i]), perm=p)"),
    "more variables": ("add(add(a, b), add(a, c))", "add(add(a, a), add(b, c))", "add(add(a, b), add(d, c)) -> add(add(d, a), add(b, c))"),
}  # fmt: skip


@pytest.mark.parametrize("case", GENERAL)
def test_the_most_general_form_is_found(case: str) -> None:
    left, right, expected = GENERAL[case]
    form = generalise(at(left, right), MATRICES, 1)
    assert form is not None
    assert rule_line(as_rule(*form, name="x")) == f"x: {expected}"


def test_a_rule_keeps_the_conditions_that_it_needs() -> None:
    form = generalise(at("add(slice(a, axis=0, start=0, stop=1), slice(b, axis=0, start=0, stop=1))",
                         "slice(add(a, b), axis=0, start=0, stop=1)"), MATRICES, 1)  # fmt: skip
    assert form is not None and form[2]
    assert check(as_rule(*form)).status == "tested"
    assert check(as_rule(form[0], form[1], [])).status == "refuted"


@pytest.mark.parametrize(
    "left, right, when",
    [
        ("matmul(add(a, c), b)", "add(matmul(a, b), matmul(c, b))", {"size(a, -1) == size(c, -1)"}),
        ("matmul(a, add(b, c))", "add(matmul(a, b), matmul(a, c))", {"size(b, -2) == size(c, -2)"}),
    ],
)
def test_conditions_are_as_weak_as_the_law(left: str, right: str, when: set[str]) -> None:
    form = generalise(at(left, right), MATRICES)
    assert form is not None
    assert {*as_rule(*form).when} == when


def test_conditions_found_by_instances_exclude_all_that_fail() -> None:
    bare = as_rule(parse_term("matmul(add(a, c), b)"), parse_term("add(matmul(a, b), matmul(c, b))"))
    options = [parse_guard(t) for t in ("rank(a) == rank(c)", "shape(a) == shape(c)", "size(a, -1) == size(c, -1)")]
    enough = [parse_guard("shape(a) == shape(c)")]
    assert weakest(bare, enough, options, [(1, 12)]) == [options[2]]
    assert weakest(bare, enough, options[:2], [(1, 12)]) == [options[1]]
    assert weakest(bare, [], options[:1], [(1, 12)]) is None


@pytest.mark.parametrize(
    "left, right",
    [
        ("matmul(a, b)", "matmul(b, a)"),
        ("concat(a, b, axis=0)", "concat(b, a, axis=0)"),
        ("matmul(add(a, b), c)", "matmul(a, add(b, c))"),
        ("slice(concat(a, b, axis=0), axis=0, start=0, stop=size(a, 0))", "b"),
        ("relu(add(a, b))", "add(relu(a), relu(b))"),
    ],
)
def test_what_is_false_is_not_made_a_rule(left: str, right: str) -> None:
    assert generalise(at(left, right), MATRICES) is None


def test_terms_are_written_as_they_are_read() -> None:
    for text in ("matmul(concat(a, b, axis=1), c)", "slice(x, axis=0, start=0, stop=(size(a, 0) + 1) * 2)",
                 "permute(x, perm=(1, 0))", "sum(x, axes=(1,))", "mul(x, lit(2.0, x))", "not_(lt(x, y))", "slice(x, axis=p[1], start=0, stop=3)"):  # fmt: skip
        assert parse_term(render(parse_term(text))) == parse_term(text)


def test_candidates_bind_what_they_need() -> None:
    back = candidate(Equality(parse_term("a"), parse_term("add(a, mul(b, 0.0))"), True), MATRICES)
    assert back is not None and variables(back.left) == ["a", "b"] and render(back.right) == "a"
    assert candidate(Equality(parse_term("sub(a, a)"), parse_term("sub(b, b)"), True), MATRICES) is None
    named = candidate(Equality(parse_term("add(c, b)"), parse_term("add(b, c)"), True), MATRICES)
    assert named is not None and render(named.left) == "add(a, b)"


# ---------------------------------------------------------------- derivation
def test_rules_derive_their_consequences_only() -> None:
    session = InProcess()
    rules = [Rule("associates", "(x + y) + z", "x + (y + z)", both=True), Rule("commutes", "x + y", "y + x")]
    asked = [
        Rule("turn", "a + (b + c)", "c + (b + a)"),
        Rule("wrong", "a + (b + c)", "a + (b + b)"),
        Rule("other", "a * b", "b * a"),
    ]
    assert derived(rules, [claim(r) for r in asked], session) == [True, False, False]
    assert derived([], [claim(asked[0])], session) == [False]
    assert derived(rules, [[]], session) == [False]  # without an instance nothing is shown


@pytest.fixture(scope="module")
def small() -> Synthesis:
    return synthesize(["add", "relu", "transpose", "concat"], 2, variables=3, prove=False)


def test_the_algebra_is_rediscovered(small: Synthesis) -> None:
    assert small.stopped == "complete" and small.reached == {"matrices": 2}
    found = {rule_line(f.rule).split(": ")[1].split(";")[0] for f in small.found}
    assert {
        "add(a, b) <-> add(b, a)",
        "relu(relu(a)) -> relu(a)",
        "permute(relu(a), perm=p) <-> relu(permute(a, perm=p))",
    } <= found
    assert any(f.rule.left == "concat(concat(a, b, axis=i), c, axis=i)" and f.rule.both for f in small.found)
    turned = next(f.rule for f in small.found if f.rule.left == "permute(permute(a, perm=p), perm=p)")
    assert turned.when == ("p == swap_last(rank(a))",)


def test_found_rules_pass_on_fresh_instances(small: Synthesis) -> None:
    assert small.found
    for f in small.found:
        assert f.verdict.status in ("proved", "tested")
        assert check(f.rule, seed=99, samples=12).status == "tested", rule_line(f.rule)


def test_no_found_rule_follows_from_the_others(small: Synthesis) -> None:
    session = InProcess()
    assert len(minimise(small.found, session)) == len(small.found)
    extra = small.found[0]
    doubled = [
        *small.found,
        extra.__class__(Rule("again", "add(x, add(y, z))", "add(add(y, x), z)"), extra.verdict, 2, "matrices", True),
    ]
    kept = minimise(doubled, session)
    assert [f.rule.name for f in kept] == [f.rule.name for f in small.found]


def test_the_table_is_read_by_the_checker(small: Synthesis) -> None:
    text = small.text()
    assert small.command in text
    lines = rule_file.read(text)
    assert [x.rule.left for x in lines] == [f.rule.left for f in small.found]
    assert [x.rule.when for x in lines] == [f.rule.when for f in small.found]
    assert [x.rule.exact for x in lines] == [f.rule.exact for f in small.found]
    assert all(next(instances(x.rule.directions[0], random.Random(0), 1), None) for x in lines)


def test_two_runs_find_the_same() -> None:
    runs = [synthesize(["neg"], 2, variables=1, prove=False) for _ in range(2)]
    assert runs[0].found and runs[0].text() == runs[1].text()


def test_known_rules_are_marked() -> None:
    base = [Rule("commutes", "x + y", "y + x")]
    found = synthesize(["add"], 1, variables=2, base=base).found
    assert [f.known for f in found if f.rule.left == "add(a, b)"] == [True]
    assert [f.known for f in synthesize(["mul"], 1, variables=2, base=base).found] == [False]


# ---------------------------------------------------------------- ends
def test_a_stopped_search_keeps_what_it_found() -> None:
    message: list[str] = []
    found = synthesize(["add", "mul"], 3, say=message.append, stop=lambda: sum("->" in s for s in message) >= 2)
    assert found.stopped == "interrupted" and len(found.found) >= 2


def test_no_time_no_rules() -> None:
    found = synthesize(["add"], 2, time_limit=0)
    assert found.stopped == "out of time" and not found.found and found.text()


def test_command_line(capsys: pytest.CaptureFixture[str], tmp_path) -> None:
    output = tmp_path / "found.rules"
    assert (
        cli.run(
            ["rules", "synthesize", "--ops", "add,relu", "--size", "1", "--variables", "2", "-o", str(output), "--json"]
        )
        == 0
    )
    document = json.loads(capsys.readouterr().out)
    assert document["ok"] and document["stopped"] == "complete" and document["output"] == str(output)
    assert {r["name"] for r in document["rules"]} == {x.rule.name for x in rule_file.read(output.read_text())}
    assert all(r["known"] for r in document["rules"] if r["left"] == "add(a, b)")
    assert cli.run(["rules", "synthesize", "--ops", "nonsense"]) == 2
    assert cli.run(["rules", "synthesize", "--ops", "add", "--variables", "9"]) == 2
