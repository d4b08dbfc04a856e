"""Templates of generated kernels, and the generator that makes them for the fusion groups of an e-graph view.

In: fusion groups.
Out: kernel templates.
Imports: backends, backends.ir, backends.lowering, backends.program, costdb.keys, egraph.ir, egraph.saturate,
    egraph.view, errors, extract.candidates, extract.fusion, extract.model, processes.
"""
