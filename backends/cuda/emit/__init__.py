"""General CUDA C++ emitter: thread layouts, vectorized loads, reductions, tensor-core fragments.

In: a kernel of the IR and a schedule.
Out: CUDA source.
Imports: backends.generate, backends.ir, backends.lowering, egraph.ops, egraph.types.
"""
