"""Rule synthesis: enumerate terms, group by value, generalize, test, minimize.

In: a set of ops.
Out: new candidate rules with guards.
Imports: egraph.ir, egraph.saturate, errors, rules.check, rules.semantics, rules.smt.
"""
