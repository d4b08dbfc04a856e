"""Lowering of e-graph terms to the kernel IR: one rule per op, and passes on the kernel IR.

In: a term and operand layouts.
Out: a kernel of the IR.
Imports: backends.ir, egraph.ir, extract.fusion, extract.model.
"""
