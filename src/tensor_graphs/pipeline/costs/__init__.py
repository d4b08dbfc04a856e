"""Starts the backends' measuring processes, and computes prices of candidate kernels from measurements.

In: candidate kernels.
Out: their prices in µs.
Imports: backends, backends.admission, backends.generate, backends.program.helpers, backends.tuning, backends.user,
    costdb.keys, costdb.price, costdb.store, egraph.evaluate, egraph.ir, egraph.saturate, errors, extract.model,
    extract.search, options, pipeline.context, report.
"""
