"""Emits Python source for a plan (the chosen kernel calls): for a CPU or a GPU, for one size or for any size.

In: a plan.
Out: an emitted program: source, weights, states, memory plan.
Imports: backends, backends.ir, backends.library, backends.program.helpers, backends.runtime, backends.user,
    costdb.keys, egraph.composites, egraph.ir, egraph.ops, egraph.patterns, egraph.types, errors, extract.model,
    processes.
"""
