"""Verifies results numerically: inputs for a graph, comparison per element and slice, rounding sensitivity, Torch
references.

In: a graph and results.
Out: errors as multiples of the allowed error.
Imports: backends.runtime, costdb.keys, egraph.evaluate, egraph.ir, egraph.ops, egraph.types, errors.
"""
