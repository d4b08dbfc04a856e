"""Derives rules, and proves equality of terms, from other rules by saturation.

In: rules or two terms.
Out: derivations.
Imports: egraph.ir, egraph.patterns, egraph.saturate, egraph.types, egraph.view, errors, rules, rules.check,
    rules.semantics, rules.smt, rules.tables.
"""
