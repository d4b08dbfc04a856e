"""Templates of generated kernels and the generator that asks for every fusion group.

In: fusion groups.
Out: kernel templates.
Imports: backends, backends.ir, backends.lowering, backends.program, costdb.keys, egraph.ir, egraph.saturate,
    egraph.view, errors, extract.candidates, extract.fusion, extract.model, processes.
"""
