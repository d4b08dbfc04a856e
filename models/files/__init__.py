"""Reads file formats strictly and lazily: safetensors, the native graph file, TASO listings.

In: untrusted files.
Out: arrays and graphs.
Imports: egraph.ir, errors, models.common, plain, settings, writing.
"""
