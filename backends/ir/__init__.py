"""Kernel IR: scalar expressions over axes, index arithmetic, tiling facts, C expression syntax.

In: expressions.
Out: kernels in normal form.
Imports: egraph.ir, egraph.ops, egraph.types, extract.model, wording.
"""
