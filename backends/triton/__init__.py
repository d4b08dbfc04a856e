"""Triton backend: generated kernels as @triton.jit and Gluon functions.

In: kernels of the IR.
Out: Triton source and launches.
Imports: backends.generate, backends.ir, backends.lowering, backends.triton.emit, backends.triton.schedules,
    backends.triton.warp_specialized, egraph.ir.
"""
