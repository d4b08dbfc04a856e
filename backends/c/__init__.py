"""C backend: generated kernels for the CPU, compiled by the system compiler, and convolutions.

In: kernels of the IR.
Out: C functions.
Imports: backends.c.emit, backends.generate, backends.ir, backends.library, egraph.ir, egraph.saturate, egraph.view,
    errors, extract.fusion, extract.model, private.
"""
