"""Searches and verifies programs with free dimensions: ranges of sizes, sizes to probe, a plan per bucket of sizes.

In: a graph with symbolic dimensions.
Out: a program for all of its sizes.
Imports: backends, backends.generate, backends.program, backends.program.emit, backends.runtime, egraph.evaluate,
    egraph.ir, egraph.ops, egraph.saturate, egraph.simplify, egraph.types, egraph.view, errors, extract.candidates,
    extract.model, extract.search, options, pipeline.context, pipeline.execution, pipeline.sources, report,
    verification, wording.
"""
