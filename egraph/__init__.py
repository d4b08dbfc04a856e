"""Holds typed tensor graphs and their e-graphs, and saturates them by rewrite rules.

In: a model as a graph.
Out: a read-only view of a saturated e-graph.
Imports: egraph.builders.
"""

from .builders import tensor_operators

assert tensor_operators  # installs the operators of `Tensor`
