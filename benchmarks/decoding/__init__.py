"""Decode steps of language models on a GPU and a CPU: programs, their kernels, searches, quantized weights."""
