"""Defines the op table: the entries of atomic ops, their meanings in NumPy, type laws (functions from the operands'
types to the result's), and index maps (which operand element each element of a result reads).

In: op entries.
Out: the registry of ops, and functions from operands' types to a result's type.
Imports: egraph.types, errors.
"""
