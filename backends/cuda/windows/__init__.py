"""Kernels over short windows: depthwise convolution, pooling.

In: a window reduction and a schedule.
Out: CUDA source.
Imports: backends, backends.cuda.emit, backends.cuda.unrolled, backends.generate, backends.ir, egraph.types.
"""
