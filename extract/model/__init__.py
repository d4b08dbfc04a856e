"""Defines the records of extraction: kernel templates, calls, candidates, plans, flops and bytes, sizes.

In: declarations of backends.
Out: typed records.
Imports: egraph.ir, egraph.saturate, egraph.view, errors, processes, wording.
"""
