"""C emitter: loop nests, values, spelling of types.

In: a kernel of the IR.
Out: C source.
Imports: backends.ir.
"""
