"""Lowers e-graph terms to the kernel IR by one rule per op, and transforms kernels of the IR.

In: a term and operand layouts.
Out: a kernel of the IR.
Imports: backends.ir, egraph.evaluate, egraph.ir, egraph.ops, egraph.simplify, egraph.types, extract.fusion,
extract.model.
"""
