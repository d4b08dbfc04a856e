"""The figures that the project must reach, one small file each; `python -m benchmarks.run` measures them all."""
