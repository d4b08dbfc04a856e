"""Inspects a search: saturated e-graphs, explanations of rewrites, the best few plans (choices of kernels), e-graph
files, equivalence proofs.

In: the sources that `optimize` takes.
Out: an `Explorer`, explanations, plans.
Imports: backends, backends.program, backends.tuning, backends.verification, cache_folder, egraph.blocks,
    egraph.builders, egraph.composites, egraph.explain, egraph.ir, egraph.ops, egraph.patterns, egraph.saturate,
    egraph.simplify, egraph.types, egraph.view, errors, extract.candidates, extract.model, extract.search,
    extract.solve, models.files, option_checks, options, pipeline, pipeline.cache, pipeline.context, pipeline.costs,
    pipeline.execution, pipeline.sources, pipeline.stages, plain, progress, public_functions, report, rules,
    rules.derive, settings, verification, wording, writing.
"""
