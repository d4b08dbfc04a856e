"""Synthesizes rules: enumerates terms, groups them by value, generalizes, tests, minimizes.

In: a set of ops.
Out: new candidate rules with guards.
Imports: egraph.ir, egraph.saturate, errors, rules.check, rules.semantics, rules.smt.
"""
