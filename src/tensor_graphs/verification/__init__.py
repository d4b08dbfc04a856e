"""Verification of programs against a float64 run of the original graph; diagnosis of failures; memory checks.

In: a graph and a program.
Out: a verdict with errors.
Imports: backends, backends.runtime, backends.tuning, backends.verification, costdb.keys, egraph.ir, errors,
    extract.model, processes, rules.check.
"""
