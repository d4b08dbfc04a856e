"""Lowering of e-graph terms to the kernel IR, one rule per op, and passes on it (split reduction, one-pass variance,
    output interleaving).

In: a term and operand layouts.
Out: a kernel of the IR.
Imports: backends.ir, egraph.ir, extract.fusion.
"""
