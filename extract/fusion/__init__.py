"""Fusion groups: terms that one kernel computes (single-output, multi-output, consumer and maximal fusion).

In: an e-graph view.
Out: fusion groups as terms.
Imports: egraph.ir, egraph.saturate, egraph.view.
"""
