"""Verifies programs against a float64 run of the original graph, diagnoses failures, and checks memory.

In: a graph and a program.
Out: a verdict with errors.
Imports: backends, backends.runtime, backends.tuning, backends.verification, costdb.keys, egraph.evaluate, egraph.ir,
    egraph.patterns, egraph.types, errors, extract.model, plain, processes, rules.check, wording.
"""
