"""Proves equality of terms: congruence closure, chains of rule applications, replay.

In: a saturated e-graph and two terms of one e-class.
Out: a checked chain of rewrite steps.
Imports: egraph.composites, egraph.evaluate, egraph.ir, egraph.patterns, egraph.saturate, egraph.types, egraph.view,
    errors.
"""
