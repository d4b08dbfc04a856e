"""Models and workloads that the benchmarks measure."""
