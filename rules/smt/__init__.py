"""SMT proofs (z3) of layout, elementwise and contraction rules for all sizes of a rank.

In: a rule.
Out: proved, refuted or undecided.
Imports: egraph.ir, rules.semantics.
"""
