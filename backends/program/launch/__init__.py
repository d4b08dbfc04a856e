"""Executes emitted programs on a device: compiled kernels, direct calls of GPU and CPU programs, launch modes, calls at
new sizes.

In: emitted source.
Out: functions that launch its kernels.
Imports: backends, backends.c, backends.program.emit, backends.program.helpers, backends.runtime, bytecode,
    egraph.types, errors, extract.model, imported, plain, private, processes.
"""
