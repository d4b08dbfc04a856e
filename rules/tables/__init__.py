"""Lists the rewrite rules in force, one module a family.

In: nothing.
Out: lists of rules.
Imports: egraph.ops, egraph.patterns.
"""
