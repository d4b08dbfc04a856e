"""Converts a source (expression, function, module, file) to a graph, and represents the caller's own function.

In: a source and example inputs.
Out: a graph, or a callable of the caller's own function.
Imports: backends, backends.program, backends.runtime, egraph.evaluate, egraph.ir, egraph.ops, egraph.simplify,
    egraph.types, errors, models, models.files, models.functions, models.torch_export, wording.
"""
