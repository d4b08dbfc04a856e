"""Legality and ranking of Triton schedules.

In: a kernel and its shape.
Out: schedules worth measuring.
Imports: backends, backends.cuda.emit, backends.generate, backends.ir, backends.triton.emit, egraph.ir.
"""
