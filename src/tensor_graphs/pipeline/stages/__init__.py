"""Holds the stages of a search: load, prepare, rewrite, match, choose, accept, time; and the steps inside of them.

In: a source, or the result of the stage before.
Out: the input of the next stage; at the end, a verified and timed program.
Imports: backends, backends.library, backends.program, backends.program.emit, backends.program.launch,
    backends.runtime, backends.tuning, backends.user, backends.verification, costdb.store, egraph.blocks,
    egraph.evaluate, egraph.explain, egraph.ir, egraph.ops, egraph.patterns, egraph.saturate, egraph.simplify,
    egraph.types, egraph.view, errors, extract.candidates, extract.model, extract.search, extract.solve, models.files,
    options, pipeline.context, pipeline.costs, pipeline.execution, pipeline.sizes, pipeline.sources,
    pipeline.trace_checks, report, verification, wording.
"""
