"""torch.export importer, one builder per ATen overload.

In: an nn.Module or exported program.
Out: a graph.
Imports: egraph.ir, egraph.simplify, errors, extract.model, models.common, models.files, processes, settings.
"""
