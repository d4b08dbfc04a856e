"""Saturates graphs by rewrite rules with egglog: encoding, rule compilation, rounds under limits, beam pruning, worker
processes.

In: the unique blocks of a graph and rules.
Out: saturated e-graphs as arrays.
Imports: bytecode, egraph.blocks, egraph.composites, egraph.ir, egraph.ops, egraph.patterns, egraph.types, egraph.view,
    errors, plain, processes, settings, writing.
"""
