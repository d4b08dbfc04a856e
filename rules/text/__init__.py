"""Rules in the text format of TASO and Tensat: reader, type inference, proof for all shapes.

In: rule text.
Out: typed rules and verdicts.
Imports: egraph.ir, errors, plain, rules.check, rules.semantics.
"""
