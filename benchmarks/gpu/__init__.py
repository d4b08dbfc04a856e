"""Programs on a GPU beside PyTorch: workloads, whole models, variants, sizes, calls, and kernels alone."""
