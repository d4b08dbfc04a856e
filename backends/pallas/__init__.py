"""Pallas backend: kernels and whole programs in JAX, interpreted on a CPU and compiled for an accelerator.

In: kernel IR; plans.
Out: functions of jax.experimental.pallas; programs on JAX arrays.
Imports: backends, backends.generate, backends.ir, backends.program.emit, backends.program.helpers,
    backends.program.launch, backends.runtime, costdb.keys, egraph.builders, egraph.evaluate, egraph.ir, egraph.ops,
    egraph.types, extract.model, imported.
"""
