"""Defines the op table: its entries for atomic ops, type laws, index maps, and NumPy meanings.

In: op entries.
Out: the registry of ops, and functions from operands' types to a result's type.
Imports: egraph.types, errors.
"""
