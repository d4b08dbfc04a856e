"""Kernels wanted: briefs of a plan's regions with the largest gap to the machine's limit, and proposals for them.

In: the sources that `optimize` takes.
Out: briefs; accepted files of user kernels.
Imports: backends, backends.admission, backends.generate, backends.program, backends.tuning, backends.user,
    costdb.keys, costdb.store, egraph.ir, errors, explorer, extract.model, options, pipeline, progress,
    verification, wording, writing.
"""
