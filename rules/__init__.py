"""Rewrite rules as tables of data, and the machinery that proves or refutes a rule.

`ALL` is every rule in force, in a fixed order; to add one, add a row to a table.
"""

from __future__ import annotations

from ..egraph.rule import Rule
from . import algebra, contraction, fusion, layout, reduction

ALL: tuple[Rule, ...] = (*algebra.RULES, *contraction.RULES, *reduction.RULES, *layout.RULES, *fusion.RULES)

if len({r.name for r in ALL}) != len(ALL):
    twice = sorted({r.name for r in ALL if sum(s.name == r.name for s in ALL) > 1})
    raise ValueError(f"two rules share a name: {twice}")
