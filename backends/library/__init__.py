"""Library kernels as rows of tables: NumPy, Torch on CPU and CUDA; a null backend.

In: nothing.
Out: kernel templates.
Imports: backends, backends.ir, backends.runtime, egraph.ops, egraph.types, errors, extract.model, imported.
"""
