"""The rewrite rules as data, one module a family: rules for models, rules for proofs only (normal forms, strides,
    loops), and rules on request (partial).

In: nothing.
Out: lists of rules.
Imports: egraph.ir.
"""
