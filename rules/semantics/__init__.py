"""Evaluates rules exactly, for checks: random instances, evaluation modulo a prime, symbolic sums.

In: a rule.
Out: instances and exact values.
Imports: egraph.builders, egraph.ir, egraph.ops, egraph.patterns, egraph.types, errors.
"""
