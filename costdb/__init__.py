"""Stores measured kernel costs, and predicts those of other kernels.

In: kernel keys and samples.
Out: prices with their origin.
Imports: nothing.
"""
