"""Warp-specialized GEMM for Hopper: producer and consumer warps, TMA, wgmma.

In: a contraction and a schedule.
Out: CUDA source.
Imports: backends, backends.cuda.emit, backends.generate, backends.ir, egraph.types.
"""
