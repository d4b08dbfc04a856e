"""Reads file formats strictly and lazily: safetensors and the native graph file.

In: untrusted files.
Out: arrays and graphs.
Imports: egraph.composites, egraph.ir, egraph.ops, egraph.types, errors, plain, settings, wording, writing.
"""
