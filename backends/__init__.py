"""From a plan to running code: kernels, emitters, memory plan, executor, measuring."""
