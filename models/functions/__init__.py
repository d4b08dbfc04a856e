"""Traced Python functions over NumPy names.

In: a function and example arrays.
Out: a graph.
Imports: egraph.ir, errors, models.common, models.torch_export, wording.
"""
