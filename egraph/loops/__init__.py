"""Iteration-space rewrite rules (split, merge, interchange), used for derivations only.

In: contractions as loop nests.
Out: rules and loop notation.
Imports: egraph.ir.
"""
