"""Evaluates rules exactly, for checks: random instances, evaluation modulo a prime, symbolic sums.

In: a rule.
Out: instances and exact values.
Imports: egraph.ir, errors.
"""
