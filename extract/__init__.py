"""From a saturated e-graph to a plan: candidate kernels, the extraction problem, its solvers, the measuring search.

In: a view and backends.
Out: a plan.
Imports: nothing.
"""
