"""From a saturated e-graph to a plan: candidate kernels, the optimization problem, its solvers, the path iterator."""
