"""Read-only e-graph views as arrays, and pattern matching on them.

In: tables of a saturated e-graph.
Out: e-classes, e-nodes, types, matches.
Imports: egraph.ir, errors.
"""
