"""Simplifies graphs by steps that always pay: identities, folding, widening of 16-bit floats, canonical attention
masks.

In: a graph.
Out: an equivalent smaller graph.
Imports: egraph.builders, egraph.evaluate, egraph.ir, egraph.ops, egraph.types.
"""
