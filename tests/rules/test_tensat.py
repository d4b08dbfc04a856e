"""The reader of Tensat's rule language, and its rules as tensors at concrete shapes."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensor_graphs.egraph.evaluate.interpret import evaluate
from tensor_graphs.errors import RuleError
from tensor_graphs.rules.text.instance import eye_kernel
from tensor_graphs.rules.text.linear_equations import Affine, Inconsistent, System
from tensor_graphs.rules.text.scopes import SCOPES
from tensor_graphs.rules.text.shapes import instances, members, typings
from tensor_graphs.rules.text.tensat import blank, is_text, paired, parse_line
from tensor_graphs.rules.text.terms import perm_of
from tensor_graphs.rules.text.text_rule import Input, TextApply, TextRule

SAMPLES = Path(__file__).parents[3] / "shared" / "data" / "tensat"
needs_samples = pytest.mark.skipif(not SAMPLES.exists(), reason="the samples of Tensat's rules are not here")


def read(text: str, pairs: bool = False) -> list[TextRule]:
    """The rules of a file in Tensat's format, in file order.

    With `pairs`, two consecutive rules form one. Blank lines and lines that begin with `#` are skipped. RuleError names
    the line that cannot be parsed; a well-formed rule with an unknown operator is returned with its `problem`.
    """
    found = [r for i, line in enumerate(text.splitlines(), 1) if not blank(line) for r in parse_line(line, i)]
    return [paired(a, b) for a, b in zip(found[::2], found[1::2], strict=True)] if pairs else found


def one(text: str):
    (rule,) = read(text)
    return rule


def shapes(text: str) -> list[dict[str, tuple[int, ...]]]:
    return [x.shapes for x in instances(one(text))]


# ---------------------------------------------------------------- text
def test_a_rule_prints_as_it_was_written() -> None:
    text = "(split_0 (split 1 (conv2d 1 2 0 2 ?input_7 (concat 0 4 ?a ?b))))=>?input_7"
    rule = one(text)
    assert rule.inputs == ("input_7", "a", "b")
    assert str(rule.lefts[0]) == "(split_0 1 (conv2d 1 2 0 2 ?input_7 (concat 0 4 ?a ?b)))"
    assert rule.rights == (Input("input_7"),)


def test_equations_need_no_separator() -> None:
    found = read("matmul(input_1,Imatmul)==input_1transpose(transpose(input_2))==input_2ewmul(a,b)==ewmul(b,a)")
    assert [r.text for r in found] == ["matmul(input_1,Imatmul)==input_1", "transpose(transpose(input_2))==input_2",
                                       "ewmul(a,b)==ewmul(b,a)"]  # fmt: skip
    assert all(r.both for r in found)


def test_pairs_join_consecutive_lines() -> None:
    text = "(relu ?a)=>(split_0 (split 1 (relu (concat 1 2 ?a ?b))))\n\n# second half\n(relu ?b)=>(split_1 (split 1 (relu (concat 1 2 ?a ?b))))\n"
    (pair,) = read(text, pairs=True)
    assert len(pair.lefts) == len(pair.rights) == 2 and pair.line == 1
    assert len(read(text)) == 2


@pytest.mark.parametrize("text", ["(relu ?a", "(relu ?a)", "=>?a", "(relu ?a)=>(relu ?a) ?b", "(3 ?a)=>?a", "()=>?a", "?a=>%",
                                  "f(a=>b", "f(a,)==b", "(relu ?a)=>(relu ?a))", "(" * 5000 + "=>?a"])  # fmt: skip
def test_what_cannot_be_read_names_its_line(text: str) -> None:
    with pytest.raises(RuleError, match="line 2"):
        read(f"(relu ?a)=>(relu ?a)\n{text}")


@pytest.mark.parametrize(
    "text,problem",
    [
        ("(wibble ?a)=>?a", "no operator is called 'wibble'"),
        ("(relu ?a ?b)=>?a", "relu is written"),
        ("(matmul 9 ?a ?b)=>(matmul 0 ?a ?b)", "act has no value 9"),
        ("(conv2d 0 1 0 0 ?a ?b)=>?a", "stride_h has no value 0"),
        ("(noop ?a ?b)=>?a", "2 outputs on the left"),
        ("(split 1 ?a)=>?a", "both halves"),
        ("(matmul ?a ?a ?b)=>?b", "parameters"),
    ],
)
def test_what_is_not_known_is_a_problem_of_the_rule_alone(text: str, problem: str) -> None:
    first, second = read(f"{text}\n(relu ?a)=>(relu ?a)")
    assert problem in first.problem and not first.lefts
    assert not second.problem


@given(st.text(alphabet="()?=>, ab_1relumatmul#\n", max_size=60))
@settings(max_examples=150, deadline=None)
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        read(text)
    except RuleError as error:
        assert "line" in error.message


@pytest.mark.parametrize("line,text", [("(relu ?a)=>?a", True), ("(transpose Imatmul)=>Imatmul", True), ("Imatmul=>Imatmul", True),
                                       ("relu(a)==a", True), ("(a + b) + c => a + (b + c)", False), ("relu(a) -> a", False),
                                       ("x @ y <=> y", False)])  # fmt: skip
def test_languages_are_told_apart(line: str, text: bool) -> None:
    assert is_text(line) is text


def test_permutations_in_all_spellings() -> None:
    assert perm_of((1, 0)) == perm_of(10) == perm_of(2) == (1, 0)
    assert perm_of((0, 2, 1)) == perm_of(7) == (0, 2, 1)
    assert perm_of(0) is None and perm_of((0, 0)) is None


# ---------------------------------------------------------------- shapes
def test_ranks_and_sizes_follow_from_use() -> None:
    for found in shapes("(matmul 0 ?a (concat 1 2 ?b ?c))=>(concat 1 2 (matmul 0 ?a ?b) (matmul 0 ?a ?c))"):
        assert len(found["a"]) == 2 and found["a"][1] == found["b"][0] == found["c"][0]
    assert {len(s["a"]) for s in shapes("(relu (relu ?a))=>(relu ?a)")} == {2, 3, 4}
    assert {s["s"] for s in shapes("(smul (relu ?a) ?s)=>(smul ?a ?s)")} == {()}


def test_same_padding_gives_odd_kernels_and_strides_all_remainders() -> None:
    found = shapes("(relu (conv2d 2 2 0 0 ?x ?w))=>(conv2d 2 2 0 2 ?x ?w)")
    assert all(s["w"][2] % 2 == 1 for s in found)
    assert {s["x"][2] % 2 for s in found} == {0, 1}


def test_constants_have_the_size_that_their_place_wants() -> None:
    for found in instances(one("(conv2d 1 1 0 0 ?x (Iconv 3 3))=>?x")):
        ((left, right),) = found.sides()
        assert left.shape == right.shape == found.shapes["x"]
    assert eye_kernel(2, 3, 3).sum() == 2


def test_a_split_undoes_the_latest_concat() -> None:
    nested = "(split_0 (split 1 (relu (concat 1 2 (concat 1 2 ?a ?b) ?c))))=>(relu (concat 1 2 ?a ?b))"
    assert all(left.shape == right.shape for x in instances(one(nested)) for left, right in x.sides())
    through = "(split_1 (split 0 (transpose (concat 1 2 ?a ?b))))=>(transpose ?b)"
    for x in instances(one(through)):
        ((left, right),) = x.sides()
        assert left.shape == right.shape


def test_a_variable_may_be_cut_anywhere_but_at_one_place() -> None:
    joined = one("(concat 1 2 (split_0 (split 1 ?a)) (split_1 (split 1 ?a)))=>?a")
    found = instances(joined)
    assert len({(x.shapes["a"], x.sides()[0][0].args[0].shape) for x in found}) > 3
    for x in found:
        data = {"a": np.random.default_rng(0).standard_normal(x.shapes["a"])}
        left, right = evaluate(list(x.sides("float64")[0]), data)
        assert np.array_equal(left, right)


def test_an_axis_that_nothing_put_together_cannot_be_split() -> None:
    found, why, complete = typings(one("(relu ?x)=>(split_0 (split 2 (conv2d 1 1 0 0 ?x ?w)))"))
    assert not found and "nothing was concatenated" in why and complete


def test_groups_are_chosen_by_the_scope() -> None:
    rule = one("(relu (conv2d 1 1 0 0 ?x ?w))=>(conv2d 1 1 0 2 ?x ?w)")
    ratio = lambda x: x.shapes["x"][1] // x.shapes["w"][1]
    assert {ratio(x) for x in members(typings(rule, SCOPES[0]).found)} == {1, 2, 3}
    assert {ratio(x) for x in members(typings(rule, SCOPES[1]).found)} == {1}


def test_two_choices_give_the_same_shapes_every_time() -> None:
    text = "(concat 0 4 (conv2d 1 1 0 0 ?x ?w) (conv2d 1 1 0 0 ?y ?w))=>(conv2d 1 1 0 0 (concat 0 4 ?x ?y) ?w)"
    assert shapes(text) == shapes(text)


@needs_samples
@pytest.mark.parametrize("file,pairs,count", [("converted.txt", False, 120), ("converted_multi.txt", True, 13)])
def test_sides_of_the_samples_are_equal(file: str, pairs: bool, count: int) -> None:
    rules = read((SAMPLES / file).read_text(), pairs=pairs)
    assert len(rules) == count and not any(r.problem for r in rules)
    rng = np.random.default_rng(0)
    for rule in random.Random(0).sample(rules, 13):
        found = instances(rule, count=3)
        assert found, rule.text
        for x in found:
            data = {n: rng.standard_normal(s) for n, s in x.shapes.items()}
            for left, right in x.sides("float64"):
                a, b = evaluate([left, right], data)
                np.testing.assert_allclose(a, b, atol=1e-9, err_msg=rule.text)


# ---------------------------------------------------------------- equations between sizes
def test_equations_are_solved_as_they_come() -> None:
    s = System()
    a, b, c = s.fresh(), s.fresh(), s.fresh()
    s.equate(a + b, c)
    s.equate(a, b * 2 + 1)
    assert s.reduce(c - b * 3) == Affine.of(1)
    assert s.reduce(c - a - b).number == 0
    with pytest.raises(Inconsistent):
        s.equate(a + b, c + 1)


def test_whole_numbers_have_no_halves() -> None:
    s = System()
    with pytest.raises(Inconsistent):
        s.equate(s.fresh() * 2, s.fresh() * 4 + 3)


@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(-3, 3), st.integers(-3, 3), st.integers(-4, 4)), max_size=4),
       st.tuples(*[st.integers(1, 5)] * 3))  # fmt: skip
@settings(max_examples=100, deadline=None)
def test_a_solution_stays_a_solution(equations: list[tuple[int, ...]], point: tuple[int, ...]) -> None:
    s = System()
    unknowns = [s.fresh() for _ in point]
    for *factors, _ in equations:
        total = sum((u * c for u, c in zip(unknowns, factors)), Affine.of(0))
        s.equate(total, sum(c * x for c, x in zip(factors, point)))  # consistent: the point solves all of them
    values = dict(enumerate(point))
    assert all(expr.at(values) == values[u] for u, expr in s.given.items())


def test_terms_know_their_parameters() -> None:
    (term,) = one("(conv2d 1 ?s 0 2 ?x ?w)=>?x").lefts
    assert isinstance(term, TextApply) and term.param("stride_w") == "s" and term.param("axis") is None
