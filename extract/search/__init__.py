"""Lazy measuring: solve with optimistic prices, measure kernels of the winner, solve again.

In: a hypergraph, prices, a measurer.
Out: the chosen kernels and their plan.
Imports: egraph.ir, egraph.simplify, egraph.view, errors, extract.candidates, extract.fusion, extract.model,
extract.solve, wording.
"""
