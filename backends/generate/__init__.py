"""Generates kernels: makes templates (kernels' patterns and code) for the fusion groups (terms for one kernel) of an
e-graph view.

In: fusion groups.
Out: kernel templates.
Imports: backends, backends.ir, backends.lowering, backends.program.emit, backends.program.helpers, bytecode,
    costdb.keys, egraph.ir, egraph.ops, egraph.saturate, egraph.types, egraph.view, errors, extract.candidates,
    extract.fusion, extract.model, imported, processes.
"""
