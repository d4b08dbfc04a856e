"""Operator semantics shared by several importers: einsum, sampling, identities, sizes.

In: builder arguments.
Out: graph nodes.
Imports: backends.runtime, egraph.ir, errors, processes.
"""
