"""Legality and ranking of Triton schedules (tuning parameters of kernels).

In: a kernel and the roles of its axes (row, column, batch, reduction).
Out: schedules worth measuring.
Imports: backends, backends.cuda.emit, backends.generate, backends.ir, backends.triton.emit, egraph.ir.
"""
