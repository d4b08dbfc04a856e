"""Which rules or terms follow from other rules.

In: rules or two terms.
Out: derivations.
Imports: egraph.ir, egraph.saturate, egraph.view, errors, rules, rules.check, rules.semantics, rules.smt,
    rules.tables.
"""
