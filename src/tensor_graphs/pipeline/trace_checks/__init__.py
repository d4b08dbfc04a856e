"""Compares traced graphs with the caller's own function or module, and detects functions that a trace cannot represent.

In: a function with example inputs, and its graph.
Out: a named error, or what was compared.
Imports: backends, backends.runtime, backends.verification, egraph.evaluate, egraph.ir, egraph.simplify, egraph.types,
    errors, extract.model, imported, models.functions, models.torch_export, pipeline.sources, verification.
"""
