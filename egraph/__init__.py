"""Holds typed tensor graphs and their e-graphs, and saturates them by rewrite rules.

In: a model as a graph.
Out: a read-only view of a saturated e-graph.
Imports: nothing.
"""
