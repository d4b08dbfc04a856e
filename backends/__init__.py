"""From a plan to running code: kernel IR, generated and library kernels, emitters, programs, tuning.

In: a plan.
Out: a program.
Imports: costdb.keys, egraph.ir, errors, extract.model, private, settings.
"""
