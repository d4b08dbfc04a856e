"""Evaluates graphs with NumPy, in their data types or in float64, whole or in strips.

In: a graph and arrays.
Out: arrays.
Imports: egraph.composites, egraph.ir, egraph.types, errors.
"""
