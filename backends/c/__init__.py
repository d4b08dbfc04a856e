"""C backend: generates kernels for the CPU, which the system compiler compiles, and declares convolutions.

In: kernels of the IR.
Out: C functions.
Imports: backends.c.emit, backends.generate, backends.ir, backends.library, backends.runtime, egraph.composites,
    egraph.ir, egraph.ops, egraph.patterns, egraph.saturate, egraph.types, egraph.view, errors, extract.fusion,
    extract.model, private, processes.
"""
