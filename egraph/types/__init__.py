"""Defines dimensions (numbers or symbolic polynomials), data types, and axes of tensors.

In: sizes and names of data types.
Out: dimensions, NumPy data types, promoted types.
Imports: errors.
"""
