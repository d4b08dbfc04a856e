"""Computes prices (times in µs) of kernels: roofline bound, interpolation from measured neighbours.

In: a key, flops and bytes.
Out: microseconds with an interval.
Imports: costdb.keys, costdb.reports, egraph.types.
"""
