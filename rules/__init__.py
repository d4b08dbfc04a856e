"""Holds rewrite rules as tables of data, and proves or refutes them.

In: rule rows or rule files.
Out: rules in force, verdicts.
Imports: egraph.patterns, rules.tables.
"""

from __future__ import annotations

from ..egraph.patterns.rule import Rule
from .tables import algebra, contraction, fusion, layout, quantized, reduction, strides
from .tables import normal_form as normal
from .tables import synthesized as found

ALL: tuple[Rule, ...] = (
    *algebra.RULES, *contraction.RULES, *reduction.RULES, *layout.RULES, *fusion.RULES, *found.RULES, *quantized.RULES,
)  # fmt: skip
EVERY: tuple[Rule, ...] = (*ALL, *normal.RULES, *strides.RULES)

if len({r.name for r in EVERY}) != len(EVERY):
    twice = sorted({r.name for r in EVERY if sum(s.name == r.name for s in EVERY) > 1})
    raise ValueError(f"two rules share a name: {twice}")
