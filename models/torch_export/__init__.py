"""torch.export importer: one function per ATen overload builds the graph of a call.

In: an nn.Module or exported program.
Out: a graph.
Imports: egraph.builders, egraph.composites, egraph.evaluate, egraph.ir, egraph.ops, egraph.simplify, egraph.types,
    errors, extract.model, models.common, models.files, processes, settings, wording.
"""
