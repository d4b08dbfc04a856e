"""Holds the state of one call of `optimize`: options, deadline, cost store, time reserves, messages for the report.

In: options of a call.
Out: a session.
Imports: backends, backends.generate, backends.program, backends.runtime, costdb.store, egraph.ir, egraph.patterns,
    errors, extract.model, extract.search, options, pipeline.sources, progress, report, settings, verification,
    wording, writing.
"""
