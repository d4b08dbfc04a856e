"""Attention of few rows on tensor cores, one thread-block cluster per set of keys and values.

In: kernel IR of decode attention and a schedule.
Out: CUDA source.
Imports: backends, backends.cuda.emit, backends.generate, backends.ir, egraph.types.
"""
