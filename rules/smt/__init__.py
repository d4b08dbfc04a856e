"""Proves layout, elementwise and contraction rules for all sizes of a rank by SMT (z3).

In: a rule.
Out: proved, refuted or undecided.
Imports: egraph.builders, egraph.composites, egraph.evaluate, egraph.ir, egraph.ops, egraph.patterns, egraph.types,
    errors, rules.semantics.
"""
