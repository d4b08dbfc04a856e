"""Holds the stages of `optimize`, from a source (expression, function, module, file) to a verified and timed program,
and the state of one call.

In: an expression, function, module or file.
Out: a `Program` with a report.
Imports: backends, backends.admission, backends.generate, backends.library, backends.program, backends.runtime,
    backends.tuning, backends.user, backends.verification, cache_folder, costdb.keys, costdb.price, costdb.store,
    egraph.ir, egraph.saturate, egraph.simplify, egraph.view, errors, extract.candidates, extract.model,
    extract.search, extract.solve, imported, models, models.common, models.files, models.functions, models.torch_export,
    options, plain, private, processes, progress, public_functions, report, settings, verification, wording, writing.
"""
