"""Rewrite rules as tables of data, and the machinery that proves or refutes a rule.

`ALL` is every rule in force on models, in a fixed order; to add one, add a row to a table. `EVERY` adds those that are for
proofs only.
"""

from __future__ import annotations

from ..egraph.rule import Rule
from . import algebra, contraction, found, fusion, layout, normal, reduction, strides

ALL: tuple[Rule, ...] = (
    *algebra.RULES, *contraction.RULES, *reduction.RULES, *layout.RULES, *fusion.RULES, *found.RULES,
)  # fmt: skip
EVERY: tuple[Rule, ...] = (*ALL, *normal.RULES, *strides.RULES)

if len({r.name for r in EVERY}) != len(EVERY):
    twice = sorted({r.name for r in EVERY if sum(s.name == r.name for s in EVERY) > 1})
    raise ValueError(f"two rules share a name: {twice}")
