"""Chooses kernels and measures only those that matter: solves with optimistic prices, measures the best plan's kernels,
solves again.

In: a hypergraph, prices, a measurer.
Out: the chosen kernels and their plan.
Imports: egraph.ir, egraph.simplify, egraph.view, errors, extract.candidates, extract.fusion, extract.model,
    extract.solve, processes, wording.
"""
