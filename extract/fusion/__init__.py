"""Finds fusion groups (terms that one kernel computes), with one or several outputs, with consumers of slices, or as
large as possible.

In: an e-graph view.
Out: fusion groups as terms.
Imports: egraph.builders, egraph.ir, egraph.ops, egraph.saturate, egraph.types, egraph.view.
"""
