"""Defines the records of extraction: kernel templates, calls, candidates, plans, flops and bytes, sizes.

In: declarations of backends.
Out: typed records.
Imports: egraph.builders, egraph.ir, egraph.ops, egraph.patterns, egraph.saturate, egraph.types, egraph.view, errors,
    processes, wording.
"""
