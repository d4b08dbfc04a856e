"""C emitter: loop nests, values, C text of types and operations.

In: a kernel of the IR.
Out: C source.
Imports: backends.ir.
"""
