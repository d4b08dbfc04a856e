"""Kernels of running sums.

In: a kernel with scans and a schedule.
Out: CUDA source.
Imports: backends, backends.cuda.emit, backends.cuda.unrolled, backends.generate, backends.ir, backends.lowering,
    egraph.types.
"""
