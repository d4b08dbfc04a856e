"""Measured and predicted kernel costs.

In: kernel keys and samples.
Out: prices with their origin.
Imports: nothing.
"""
