"""Implements the command `tensor-graphs`: its subcommands (table in docs/cli.md), their options, and the printing of
results.

In: arguments.
Out: text or one JSON document, and an exit code.
Imports: backends, backends.admission, backends.program, backends.tuning, backends.user, costdb.keys, costdb.store,
    egraph.blocks, egraph.explain, egraph.patterns, egraph.saturate, egraph.view, errors, explorer, extract.solve,
    generation, imported, kernels, options, pipeline, pipeline.context, pipeline.sizes, pipeline.sources,
    pipeline.stages, plain, progress, report, rules, rules.check, rules.derive, rules.files, rules.synthesize, settings,
    wording, writing.
"""

from .app import main

__all__ = ["main"]
