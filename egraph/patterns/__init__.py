"""Defines the language of rules and kernels: patterns, attribute expressions, guards, and the rule type.

In: pattern texts.
Out: patterns and rules.
Imports: egraph.builders, egraph.composites, egraph.ir, egraph.ops, errors.
"""
