"""Holds the stages of `optimize`, from a source (expression, function, module, file) to a verified and timed program,
and the state of one call.

In: an expression, function, module or file.
Out: a `Program` with a report.
Imports: backends, backends.program, backends.program.launch, backends.runtime, backends.tuning, bytecode, costdb.keys,
    costdb.store, egraph.blocks, egraph.ir, egraph.view, errors, extract.candidates, extract.model, extract.search,
    models.common, options, pipeline.cache, pipeline.context, pipeline.costs, pipeline.execution, pipeline.forms,
    pipeline.sizes, pipeline.sources, pipeline.stages, processes, progress, public_functions, report, verification,
    writing.
"""
