"""Soundness checks of rewrite rules: randomized refutation, bit-level proofs, piecewise-linear decision, stored
verdicts.

In: a rule.
Out: a verdict with evidence.
Imports: egraph.ir, errors, rules, rules.semantics, rules.smt.
"""
