"""Matches kernel templates (kernels' patterns and code) on an e-graph view (arrays of a saturated e-graph), for every
layout of the operands.

In: a view and templates.
Out: a hypergraph of candidate kernels.
Imports: egraph.builders, egraph.ops, egraph.patterns, egraph.types, egraph.view, errors, extract.fusion, extract.model.
"""
