"""Reads rules in the text format of TASO and Tensat, infers their types, and proves them for all shapes.

In: rule text.
Out: typed rules and verdicts.
Imports: egraph.builders, egraph.composites, egraph.evaluate, egraph.ir, egraph.ops, errors, plain, rules.check,
    rules.semantics.
"""
