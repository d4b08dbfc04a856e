"""Provides the parts of programs that work at run time: argument checks and marshalling, views, threads, heap settings.

In: arrays and tensors of the caller.
Out: operands of kernels.
Imports: costdb.keys, egraph.evaluate, egraph.ir, egraph.ops, egraph.types, errors, extract.model, imported, processes,
    wording.
"""
