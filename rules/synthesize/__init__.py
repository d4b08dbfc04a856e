"""Synthesizes rules: enumerates terms, groups them by value, generalizes, tests, minimizes.

In: a set of ops.
Out: new candidate rules with guards.
Imports: egraph.builders, egraph.evaluate, egraph.ir, egraph.ops, egraph.patterns, egraph.saturate, egraph.types,
    errors, rules.check, rules.semantics, rules.smt.
"""
