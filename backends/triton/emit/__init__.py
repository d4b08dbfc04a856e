"""Triton emitter: tiles, masked loads, reduction loops, dot products.

In: a kernel of the IR and a schedule.
Out: Triton source.
Imports: backends, backends.generate, backends.ir, backends.lowering, egraph.ops, egraph.types.
"""
