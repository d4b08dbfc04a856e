"""Declares composite ops, each with a decomposition into simpler ops, and writes the op table as a page.

In: decompositions.
Out: entries of the op table.
Imports: egraph.builders, egraph.ir, egraph.ops, egraph.types.
"""
