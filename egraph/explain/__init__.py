"""Proofs of equality: congruence closure, chains of rule applications, replay.

In: a saturated e-graph and two terms of one e-class.
Out: a checked chain of rewrite steps.
Imports: egraph.ir, egraph.saturate, egraph.view, errors.
"""
