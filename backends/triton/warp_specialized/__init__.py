"""Warp-specialized attention and convolution in Gluon.

In: a kernel and a schedule.
Out: Gluon source.
Imports: backends, backends.ir, backends.triton.emit, backends.triton.schedules, egraph.types.
"""
