"""Reads file formats strictly and lazily: safetensors, the native graph file, TASO listings.

In: untrusted files.
Out: arrays and graphs.
Imports: egraph.builders, egraph.composites, egraph.ir, egraph.ops, egraph.types, errors, models.common, plain,
    settings, wording, writing.
"""
