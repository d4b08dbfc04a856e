"""Ranking of candidate schedules of CUDA kernels by analytical cost models, one per kind of kernel.

In: sizes, vector widths and dtypes of a kernel (a `RankingModel`).
Out: schedules in stored form (parameter names and numbers), best estimate first.
Imports: backends, backends.ir.
"""
