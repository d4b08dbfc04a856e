"""From a saturated e-graph to a plan: candidate kernels, extraction problem, solvers, and k-best enumeration."""
