"""Derivation of rules, and proofs of equality of terms, from other rules by saturation.

In: rules or two terms.
Out: derivations.
Imports: egraph.ir, egraph.saturate, egraph.view, errors, rules, rules.check, rules.semantics, rules.smt,
    rules.tables.
"""
