"""Chooses which form of a model runs: compiled program, unfused baseline, or the caller's own function.

In: a verified program.
Out: the form that runs.
Imports: backends, backends.program, backends.runtime, backends.verification, egraph.ir, egraph.ops, egraph.types,
    errors, extract.model, pipeline.context, pipeline.costs, pipeline.execution, pipeline.sources, pipeline.stages,
    report, verification, wording.
"""
