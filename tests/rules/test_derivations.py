"""Loop rules are true, and derive what they are there for, step by step; index expressions say what terms compute."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensor_graphs.egraph.builders import builders as t
from tensor_graphs.egraph.evaluate.interpret import evaluate
from tensor_graphs.egraph.explain.explain import Explanation
from tensor_graphs.egraph.explain.replay import check as replay
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.ir.tensor import Tensor
from tensor_graphs.egraph.ops.ops import Type
from tensor_graphs.egraph.patterns.rule import Rule
from tensor_graphs.egraph.saturate.sessions import InProcess
from tensor_graphs.rules.check.check import check, judge
from tensor_graphs.rules.derive.prove import LIMITS, Prover
from tensor_graphs.rules.semantics.instance import Instance
from tensor_graphs.rules.tables import loops

MOTION = re.compile(r"(split|merge)-(mul|sub)-(\d)-of-(\d)")
SAMPLED = [r for r in (*loops.RULES, *loops.splits(3)) if not MOTION.fullmatch(r.name)]
MOVED = [r for r in loops.RULES if MOTION.fullmatch(r.name)]


@pytest.mark.parametrize("rule", SAMPLED, ids=lambda r: r.name)
def test_loop_rules_are_sampled_and_not_refuted(rule: Rule) -> None:
    assert check(rule, samples=5).status == "tested"


def _instances(rule: Rule) -> list[Instance]:
    """Operands that use the index or not, and are wide or narrow elsewhere."""
    kind, _, i, rank = MOTION.fullmatch(rule.name).groups()  # type: ignore[union-attr]
    at, n = int(i), int(rank)
    found = []
    for used_x, used_y, wide_x, wide_y in product((True, False), repeat=4):
        if not (used_x or used_y) or not (wide_x or wide_y):
            continue
        own = (6,) if kind == "split" else (2, 3)
        shape = lambda used, wide, own=own: tuple(
            (own[j - at] if used else 1) if at <= j < at + len(own) else (2 if wide else 1) for j in range(n)
        )
        new = (2, 3) if kind == "split" else (6, 1)
        full = shape(True, True)
        target = [*full[:at], *new, *full[at + len(own) :]]
        types = {"x": Type(shape(used_x, wide_x), "float32"), "y": Type(shape(used_y, wide_y), "float32")}
        found.append(Instance(types, {"t": tuple(target)}, frozenset()))
    return found


@pytest.mark.parametrize("rule", MOVED, ids=lambda r: r.name)
def test_index_maps_enter_bodies(rule: Rule) -> None:
    for instance in _instances(rule):
        assert judge(rule, instance).status == "tested", instance


def test_a_wrong_index_map_is_refuted() -> None:
    rule = next(r for r in MOVED if r.name == "split-mul-1-of-3")
    swapped = Rule("swapped", rule.left, str(rule.right).replace("min(size(y, 1), t[1])", "min(size(y, 1), t[2])").replace(
        "min(size(y, 1), t[2]))", "min(size(y, 1), t[1]))"))  # fmt: skip
    assert any(judge(swapped, i).status == "refuted" for i in _instances(rule))


NAMES = (
    "split-K", "online softmax", "attention in one pass", "im2col", "a 1×1 convolution is a product", "interchange",
)  # fmt: skip
_DERIVED: dict[str, Explanation] = {}


@pytest.fixture(scope="module")
def derivations(benchmark_module: Callable[[str], Any]) -> dict[str, Any]:
    """The derivations of benchmarks/rules/derivations.py by name."""
    return {d.name: d for d in benchmark_module("rules.derivations").DERIVATIONS}


@pytest.fixture(scope="module")
def notation(benchmark_module: Callable[[str], Any]) -> Callable[[Tensor], str]:
    """The index notation of benchmarks/rules/loop_notation.py."""
    return benchmark_module("rules.loop_notation").notation


def derived(derivations: dict[str, Any], name: str) -> Explanation:
    if name not in _DERIVED:
        _DERIVED[name] = derivations[name].derive()
    return _DERIVED[name]


@pytest.mark.parametrize("name", NAMES)
def test_derivations_are_complete_and_replayed(name: str, derivations: dict[str, Any], notation: Any) -> None:
    derivation, found = derivations[name], derived(derivations, name)
    assert found.complete and replay(found, derivation.rules).ok
    assert found.original is derivation.sides()[0] and found.chosen is derivation.sides()[1]
    text = (Path(__file__).parents[2] / "docs/derivations.md").read_text()
    assert f"## {name}\n" in text and notation(found.original) in text


@pytest.mark.parametrize("name", ["split-K", "online softmax"])
def test_the_prover_uses_loop_rules(name: str, derivations: dict[str, Any]) -> None:
    assert Prover().prove([[derivations[name].sides()]], InProcess(), replace(LIMITS, seconds=60))


def test_the_prover_of_a_convolution_searches_with_its_loop_rule(derivations: dict[str, Any]) -> None:
    *_, last = Prover().further_searches(Graph.of(list(derivations["im2col"].sides())))
    assert NEEDED["im2col"] in {rule.name for rule in last}


def test_a_wrong_split_is_not_proved() -> None:
    """The blocks of one operand are in another order."""
    a, b = t.input("a", (4, 6)), t.input("b", (6, 5))
    blocks = t.permute(t.reshape(a, (4, 3, 2)), (2, 0, 1)) @ t.reshape(b, (2, 3, 5))
    claim = (a @ b, t.reshape(t.sum(blocks, 0, True), (4, 5)))
    assert not Prover().prove([[claim]], InProcess(), replace(LIMITS, seconds=3))


NEEDED = {
    "split-K": "split-sum-by-3",
    "online softmax": "telescope",
    "im2col": "merge-sums",
    "interchange": "interchange-sums",
}


@pytest.mark.parametrize(("name", "rule"), NEEDED.items())
def test_derivations_rest_on_their_loop_rule(name: str, rule: str, derivations: dict[str, Any]) -> None:
    assert rule in derived(derivations, name).rules


# ---------------------------------------------------------------- index expressions
def _value(text: str, data: dict[str, np.ndarray[Any, Any]], at: tuple[int, ...]) -> float:
    """Evaluate an index expression by turning it into Python: an independent reading of the notation."""
    head, body = text.split(" = ", 1)
    for sign, name in (("Σ", "sum"), ("max", "max"), ("min", "min")):
        while found := re.search(sign + r"\[([\w<, ]+)\] ", body):
            ranges = " ".join(f"for {v} in range({n})" for v, n in (p.split("<") for p in found[1].split(", ")))
            depth, end = 0, len(body)
            for i in range(found.end(), len(body)):
                depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(body[i], 0)
                if depth < 0:
                    end = i
                    break
            body = f"{body[: found.start()]}{name}({body[found.end() : end]} {ranges}){body[end:]}"
    body = body.replace("·", "*").replace("−", "-").replace("mod", "%")
    body = re.sub("⌊", "(", body).replace("/", "//").replace("⌋", ")")
    names = {"exp": np.exp, "sum": lambda g: sum(g), "max": max, "min": min, **data}
    names |= dict(zip(head.strip("[]").split(", "), at))
    return float(eval(body, {"__builtins__": {"range": range}, **names}))


def _terms() -> list[Tensor]:
    x, y = t.input("x", (4, 6)), t.input("y", (6, 4))
    return [
        x @ y, t.reshape(t.permute(t.reshape(x, (4, 2, 3)), (1, 0, 2)), (8, 3)), t.sum(t.exp(x) * t.permute(y, (1, 0)), 1, True),
        t.reshape(x, (3, 8)), t.slice_axis(t.windows(x, 1, 3, 2, 1), 0, 1, 3), t.max(t.reshape(x, (2, 12)), 0, True) + 1.0,
    ]  # fmt: skip


@pytest.mark.parametrize("number", range(6))
def test_notation_means_the_term(number: int, notation: Callable[[Tensor], str]) -> None:
    term, rng = _terms()[number], np.random.default_rng(0)
    data = {"x": rng.standard_normal((4, 6)), "y": rng.standard_normal((6, 4))}
    [value] = evaluate([term], data, float64=True)
    text = notation(term)
    for at in np.ndindex(value.shape):
        shown = tuple(i for i, n in zip(at, value.shape) if n > 1)
        head = [h for h in text.split(" = ")[0].strip("[]").split(", ") if h != "0"]
        named = text.replace(text.split(" = ")[0], "[" + ", ".join(head) + "]", 1)
        assert _value(named, data, shown) == pytest.approx(value[at]), text


def test_index_arithmetic(benchmark_module: Callable[[str], Any]) -> None:
    Index = benchmark_module("rules.loop_notation").Index
    k, j = Index((("k", 1, 4),)), Index((("j", 1, 3),))
    flat = k * 3 + j
    assert flat.divided(3) == (k, j) and str(flat) == "3·k+j"
    assert str(flat.divided(2)[0]) == "⌊(3·k+j)/2⌋" and str(k.divided(2)[1]) == "(k mod 2)"
