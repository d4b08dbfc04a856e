"""Detects blocks (repeated regions) of a graph, and makes the short form of a deep model.

In: a graph.
Out: blocks with their instances; a shorter graph.
Imports: egraph.ir.
"""
