"""Runs programs and the caller's own function on given values, for verification and timing.

In: callables and values.
Out: results, and medians of times.
Imports: backends.generate, backends.program, backends.program.launch, backends.runtime, backends.tuning, costdb.keys,
    egraph.evaluate, egraph.ir, errors, extract.model, pipeline.sources, report, wording.
"""
