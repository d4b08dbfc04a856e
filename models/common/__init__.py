"""Holds operator semantics shared by several importers: einsum, sampling, identities, sizes.

In: tensor expressions and attributes of an operator.
Out: graph nodes.
Imports: backends.runtime, egraph.builders, egraph.composites, egraph.evaluate, egraph.ir, egraph.types, errors,
    processes, wording.
"""
