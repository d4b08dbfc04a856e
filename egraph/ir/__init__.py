"""Defines the typed tensor graph: hash-consed tensors, graphs with weights and states, the structure of results.

In: builder calls.
Out: graphs.
Imports: egraph.ops, egraph.types, errors, plain, processes.
"""
