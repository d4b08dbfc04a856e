"""Wanted kernels: requests (briefs) for kernels of the parts of a plan with the largest gap to the roofline limit,
    and checks of the kernels that a program proposes for them.

In: the sources that `optimize` takes.
Out: briefs; accepted files of user kernels.
Imports: backends, backends.admission, backends.generate, backends.program, backends.tuning, backends.user,
    costdb.keys, costdb.store, egraph.ir, errors, explorer, extract.model, options, pipeline, progress,
    verification, wording, writing.
"""
