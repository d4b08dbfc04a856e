"""Numerical verification: suited inputs, comparison per element and slice, rounding sensitivity, Torch references.

In: a graph and results.
Out: errors in units of what is allowed.
Imports: backends.runtime, costdb.keys, egraph.ir, errors.
"""
