"""Inspection of a search: saturated e-graphs, explanations of rewrites, the best few plans, e-graph files, equivalence
proofs.

In: the sources that `optimize` takes.
Out: an `Explorer`, explanations, plans.
Imports: backends, backends.program, backends.tuning, backends.verification, cache_folder, egraph.explain, egraph.ir,
    egraph.saturate, egraph.simplify, egraph.view, errors, extract.candidates, extract.model, extract.search,
    extract.solve, models.files, option_checks, options, pipeline, plain, progress, public_functions, report, rules,
    rules.derive, settings, verification, wording, writing.
"""
