"""Chooses a plan (the kernels that compute a graph) from a saturated e-graph: candidate kernels, the extraction
problem, its solvers, and the search that measures kernels.

In: a view and backends.
Out: a plan.
Imports: nothing.
"""
