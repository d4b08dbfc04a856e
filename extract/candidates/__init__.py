"""Matching kernel templates on an e-graph view, for every layout.

In: a view and templates.
Out: a hypergraph of candidate kernels.
Imports: egraph.ir, egraph.view, errors, extract.fusion, extract.model.
"""
