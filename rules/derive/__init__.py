"""Which rules or terms follow from other rules.

In: rules or two terms.
Out: derivations.
Imports: egraph.explain, egraph.ir, egraph.loops, egraph.saturate, egraph.view, errors, rules, rules.check,
    rules.semantics, rules.smt.
"""
