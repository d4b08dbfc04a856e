"""Holds e-graphs as read-only arrays (views), and matches patterns on them.

In: tables of a saturated e-graph.
Out: e-classes, e-nodes, types, matches.
Imports: egraph.blocks, egraph.builders, egraph.composites, egraph.ir, egraph.ops, egraph.patterns, egraph.types,
errors.
"""
