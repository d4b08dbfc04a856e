"""Decides which Triton schedules (tuning parameters of kernels) are legal, and ranks them.

In: a kernel and the roles of its axes (row, column, batch, reduction).
Out: schedules worth measuring.
Imports: backends, backends.cuda.emit, backends.generate, backends.ir, backends.triton.emit, egraph.types.
"""
