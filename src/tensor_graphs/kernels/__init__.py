"""Requests wanted kernels: finds the parts of a plan (choice of kernels) with the largest gap to the roofline limit,
writes a brief (description of the wanted kernel) for each, and checks the kernels that a command of the user proposes.

In: the sources that `optimize` takes.
Out: briefs; accepted files of user kernels.
Imports: backends, backends.admission, backends.generate, backends.program.launch, backends.tuning, backends.user,
    costdb.keys, costdb.store, egraph.builders, egraph.ir, errors, explorer, extract.model, options, pipeline,
    pipeline.context, pipeline.costs, progress, verification, wording, writing.
"""
