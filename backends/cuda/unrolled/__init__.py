"""Text of fully unrolled threads, for kernels over short windows, of running sums and of shared additions.

In: expressions and stores of one thread.
Out: CUDA source.
Imports: backends.cuda.emit, backends.ir, egraph.types.
"""
