"""Defines the typed tensor graph: op table, type laws, dimensions, expressions, rule and pattern language, reference
interpreter.

In: op entries and builder calls.
Out: hash-consed graphs.
Imports: errors, processes.
"""

from . import tensor_operators

assert tensor_operators  # installs the operators of `Tensor`
