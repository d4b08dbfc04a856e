"""CUDA C++ backend: schedules, ranking and emitters, compiled by NVRTC.

In: kernels of the IR.
Out: CUDA source and launches.
Imports: backends, backends.cuda.clustered_attention, backends.cuda.emit, backends.cuda.ranking,
    backends.cuda.scans, backends.cuda.shared_adds, backends.cuda.tiled_fp32, backends.cuda.warp_specialized,
    backends.cuda.windows, backends.generate, backends.ir, backends.lowering, backends.program.helpers, egraph.ir,
    egraph.types, extract.model.
"""
