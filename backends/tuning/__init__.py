"""Tunes kernels automatically: compile pools, CPU and GPU measuring processes, search over schedules (tuning
parameters), files of jobs for other machines.

In: candidate kernels.
Out: rows of the cost store.
Imports: backends, backends.cuda, backends.generate, backends.ir, backends.program.helpers, backends.program.launch,
    backends.runtime, backends.triton, backends.user, backends.verification, bytecode, costdb.keys, costdb.store,
    egraph.builders, egraph.composites, egraph.evaluate, egraph.ir, egraph.ops, egraph.patterns, egraph.types, errors,
    extract.model, plain, processes, settings, writing.
"""
