"""Traces Python functions over NumPy names.

In: a function and example arrays.
Out: a graph.
Imports: egraph.builders, egraph.evaluate, egraph.ir, egraph.ops, egraph.types, errors, models.common, models.files,
    models.torch_export, settings, wording.
"""
