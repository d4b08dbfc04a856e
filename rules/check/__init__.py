"""Checks the soundness of rewrite rules: randomized refutation, bit-level proofs, piecewise-linear decision, stored
verdicts.

In: a rule.
Out: a verdict with evidence.
Imports: egraph.builders, egraph.composites, egraph.evaluate, egraph.ir, egraph.ops, egraph.patterns, egraph.types,
    errors, rules, rules.semantics, rules.smt.
"""
