"""Pallas backend: kernels and whole programs in JAX, interpreted on a CPU and compiled for an accelerator.

In: kernel IR; plans.
Out: functions of jax.experimental.pallas; programs on JAX arrays.
Imports: backends, backends.generate, backends.ir, backends.program, backends.runtime, costdb.keys, egraph.ir,
    extract.model.
"""
