"""Typed tensor graphs, their e-graphs, and equality saturation.

In: a model as a graph.
Out: a read-only view of a saturated e-graph.
Imports: nothing.
"""
