"""Numerical verification: inputs suited to each op, comparison per element and slice, rounding sensitivity, reference
    runs in Torch.

In: a graph and results.
Out: errors in units of what is allowed.
Imports: backends.runtime, costdb.keys, egraph.ir, errors.
"""
