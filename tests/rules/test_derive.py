"""Counting independent rules: what follows from the others is found, what does not is not."""

from __future__ import annotations

import random

import pytest

from tensor_graphs import rules
from tensor_graphs.egraph.builders import builders as t
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.patterns.rule import Rule
from tensor_graphs.egraph.saturate.saturate import Limits, saturate_block
from tensor_graphs.egraph.saturate.sessions import InProcess
from tensor_graphs.rules.derive.independent import chosen, derives, holds, independent

BY_NAME = {r.name: r for r in rules.ALL}
SMALL = [Rule("commutes", "x + y", "y + x"), Rule("neg-neg", "neg(neg(x))", "x"),
         Rule("as-add", "x - y", "x + neg(y)", both=True)]  # fmt: skip


def test_a_rule_that_follows_is_dropped_and_no_other() -> None:
    extra = Rule("sub-of-neg", "x - neg(y)", "y + x", shortcut=True)
    found = independent([*SMALL, extra])
    assert [r.name for r in found.derived] == ["sub-of-neg"]
    assert [r.name for r in found.kept] == [r.name for r in SMALL]
    assert "| **all** | 4 | 5 | 1 | 1 | 3 |" in found.table()


def test_two_of_the_same_rule_count_once() -> None:
    twice = [Rule("a", "x * y", "y * x"), Rule("b", "x * y", "y * x")]
    assert len(independent(twice).kept) == 1


@pytest.mark.parametrize("rule", [r for r in rules.ALL if r.shortcut], ids=lambda r: r.name)
def test_shortcuts_are_derivable(rule: Rule) -> None:
    rest = [r for r in rules.ALL if r is not rule]
    assert all(derives(rest, one) for one in rule.directions)


@pytest.mark.parametrize("name", ["add-commutes", "matmul-associates", "merge-matmuls", "is-silu", "permute-permute"])
def test_basic_rules_are_not_derivable(name: str) -> None:
    rest = [r for r in rules.ALL if r.name != name]
    assert not all(derives(rest, one) for one in BY_NAME[name].directions)


def test_there_are_seventy_schemas_that_differ_in_more_than_the_op() -> None:
    """Rules stated once per elementwise op count once here, and shortcuts not at all."""
    schemas = {(r.family, r.when, r.doc) for r in rules.ALL if not r.shortcut}
    assert len(schemas) >= 70


def test_membership_in_a_view() -> None:
    x, y = t.input("x", (2, 3)), t.input("y", (2, 3))
    view = saturate_block(Graph.of(x + y), SMALL, Limits(iterations=2, seconds=300), guard=False, session=InProcess())
    assert holds(view, y + x) == holds(view, x + y) == view.roots[0]
    assert holds(view, x * y) is None


def test_instances_for_proofs_hold_no_empty_value() -> None:
    for found in chosen(BY_NAME["slice-slice"]):
        assert all(0 not in side.shape for pair in found.sides(BY_NAME["slice-slice"]) for side in pair)


def test_table_lists_every_rule() -> None:
    some = random.Random(0).sample(list(rules.ALL), 6)
    from tensor_graphs.rules.files.markdown import table_markdown

    text = table_markdown(some, samples=4)
    assert all(f"| {r.name} " in text for r in some)
    assert "tested" in text and text.startswith("# Rewrite rules")
