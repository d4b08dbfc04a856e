"""Checks and derives whole rule files, in worker processes.

In: a rule file.
Out: one verdict per rule.
Imports: egraph.ir, egraph.ops, egraph.patterns, egraph.saturate, errors, processes, rules, rules.check, rules.derive,
    rules.text.
"""
