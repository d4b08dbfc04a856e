"""Kernels that add many values to few elements (histograms, counts, sums over segments).

In: a kernel whose result is added to in memory, and a schedule.
Out: CUDA source.
Imports: backends, backends.cuda.emit, backends.cuda.unrolled, backends.generate, backends.ir, egraph.types.
"""
