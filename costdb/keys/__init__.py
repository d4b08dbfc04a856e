"""Computes the keys of measurements: kernel identity, shapes, dtypes, strides, schedule, device, toolchain.

In: a kernel call.
Out: a digest.
Imports: egraph.ir, egraph.types, errors, processes, settings, wording.
"""
