"""Tensor graphs and their e-graphs: op table, graph IR, rewrite rule type, lowering to egglog, equality saturation,
read-only e-graph view.
"""
