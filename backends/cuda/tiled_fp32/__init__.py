"""Tiled float32 GEMM in shared memory.

In: a contraction and a schedule.
Out: CUDA source.
Imports: backends, backends.cuda.emit, backends.generate, backends.ir, backends.lowering.
"""
