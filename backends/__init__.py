"""Turns a plan (choice of kernels) into running code: kernel IR, generated and library kernels, emitters, programs,
tuning.

In: a plan.
Out: a program.
Imports: cache_folder, costdb.keys, egraph.ir, egraph.ops, egraph.types, egraph.view, errors, extract.model, private,
    settings, wording.
"""
