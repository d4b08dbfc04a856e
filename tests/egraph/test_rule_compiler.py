"""Compiled rules that are kept for later programs: the texts are those of a first compilation."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tensor_graphs.egraph.ops.ops import OPS
from tensor_graphs.egraph.patterns.rule import Rule
from tensor_graphs.egraph.saturate import rule_compiler
from tensor_graphs.egraph.saturate.language import Interner
from tensor_graphs.egraph.saturate.rule_compiler import compile_rule

SCALED = Rule("scaled", "sin(x) * 2.5", "sin(x) * 7.25", when=("floating(x)",))
TURNED = Rule("turned", "permute(permute(x, perm=p), perm=q)", "permute(x, perm=compose(p, q))")
SWAPPED = Rule("swapped", "exp(x) * sin(y)", "sin(y) * exp(x)", both=True)


def after(*numbers: float) -> Interner:
    """An interner that has ids of these numbers already."""
    made = Interner()
    for number in numbers:
        made.encode("float", number)
    return made


def fresh(rule: Rule, interner: Interner) -> dict[str, str]:
    """Texts of a compilation that nothing is kept of."""
    return rule_compiler._compiled(rule, interner, (1, 2, 3), True).texts


def compiled(rule: Rule, interner: Interner, ruleset: str = "r_0") -> list[tuple[str, str]]:
    return compile_rule(rule, interner, (1, 2, 3), guarded=True, ruleset=ruleset)


def test_a_rule_is_compiled_once_for_each_way_in_which_its_numbers_are_interned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rule_compiler._kept.cache_clear()
    made, compile_ = [], rule_compiler._compiled
    monkeypatch.setattr(rule_compiler, "_compiled", lambda *a: made.append(a) or compile_(*a))
    for numbers in ((), (), (3.0,), (7.25, 2.5), (), (3.0, 9.0)):
        interner, other = after(*numbers), after(*numbers)
        text = "".join(compile_(SCALED, other, (1, 2, 3), True).texts.values())
        assert [t for _, t in compiled(SCALED, interner)] == [f'{text} :ruleset r_0 :name "scaled")']
        assert interner == other, "the same numbers are interned in the same order"
    assert len(made) == 4  # () and () again, (3.0,), (7.25, 2.5) and (3.0, 9.0)


def test_rules_of_every_rank_and_names_of_rulesets() -> None:
    for ruleset in ("r_1", "r_2"):
        found = compiled(TURNED, Interner(), ruleset)
        assert found == [(n, f'{t} :ruleset {ruleset} :name "{n}")') for n, t in fresh(TURNED, Interner()).items()]
        assert len(found) == 3


def test_an_op_that_has_changed_is_compiled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    before = compiled(SCALED, Interner())
    monkeypatch.setitem(OPS, "sin", replace(OPS["sin"]))
    made, compile_ = [], rule_compiler._compiled
    monkeypatch.setattr(rule_compiler, "_compiled", lambda *a: made.append(a) or compile_(*a))
    assert compiled(SCALED, Interner()) == before and len(made) == 1


def test_directions_are_rules_of_their_own_that_are_made_once() -> None:
    forward, backward = SWAPPED.directions
    assert SWAPPED.directions[0] is forward and not forward.both and not backward.both
    assert (backward.left, backward.right, backward.name) == (SWAPPED.right, SWAPPED.left, "swapped-reversed")
    assert SCALED.directions == (SCALED,)
