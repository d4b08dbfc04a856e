"""Backends: kernels, emitters, memory plans, program execution and measurement."""
