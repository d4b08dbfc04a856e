"""Matching of kernel templates on an e-graph view (arrays of a saturated e-graph), for every layout of the operands.

In: a view and templates.
Out: a hypergraph of candidate kernels.
Imports: egraph.ir, egraph.view, errors, extract.fusion, extract.model.
"""
