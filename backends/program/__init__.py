"""Makes programs: a plan (the chosen kernel calls) as source that binds weights and runs, for CPU and GPU; its memory
plan, arguments, weights, saved form.

In: a plan.
Out: a callable program.
Imports: backends, backends.program.emit, backends.program.helpers, backends.program.launch, backends.runtime,
    backends.user, backends.verification, costdb.keys, egraph.evaluate, egraph.ir, egraph.ops, egraph.types, errors,
    extract.model, imported, plain, private, processes, settings, wording, writing.
"""
