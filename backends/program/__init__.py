"""Programs: a plan (the chosen kernel calls) as source that binds weights and runs, for CPU and GPU; its memory plan,
arguments, weights, saved form.

In: a plan.
Out: a callable program.
Imports: backends, backends.ir, backends.library, backends.runtime, backends.user, backends.verification, costdb.keys,
egraph.ir, errors, extract.model, imported, plain, private, processes, wording, writing.
"""
