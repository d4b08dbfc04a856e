"""Fusion groups: which e-class terms one generated kernel computes (single-output, multi-output, consumer and maximal
    fusion).

In: an e-graph view.
Out: fusion groups as terms.
Imports: egraph.ir, egraph.saturate, egraph.view.
"""
