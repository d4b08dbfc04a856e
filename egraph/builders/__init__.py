"""Builds nodes under the names of the Array API, with the casts and broadcasts that operands need; operators of
`Tensor`.

In: tensors, numbers and attributes.
Out: tensors.
Imports: egraph.ir, egraph.ops, egraph.types, errors, wording.
"""
