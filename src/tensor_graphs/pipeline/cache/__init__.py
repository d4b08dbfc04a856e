"""Stores finished plans (choices of kernels) and their compiled kernels on disk, and the digests that identify them.

In: a plan of a finished search.
Out: the plan in another process.
Imports: backends, backends.generate, backends.program, backends.program.launch, backends.tuning,
    cache_folder, costdb.keys, costdb.store, egraph.ir, egraph.ops, egraph.types, errors, extract.model, models.files,
    pipeline.costs, plain, private, report, wording, writing.
"""
