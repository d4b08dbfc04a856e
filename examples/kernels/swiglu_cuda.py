"""A CUDA C++ kernel: the gated activation silu(x) * y.

The text is compiled behind the library of built-in kernels (backends/program/helpers/cuda_intrinsics.cuh), which has
the types f16 and bf16, `wide(x)` (to float) and `narrow(value, place)` (from float). No header files are needed.
"""

import tensor_graphs as tg

KINDS = {"float32": "float", "float16": "f16", "bfloat16": "bf16"}


@tg.kernel(
    "cuda",
    reference=lambda x, y: tg.silu(x) * y,
    inputs={"x": "T[M, N]", "y": "T[M, N]"},
    types={"T": ("float16", "bfloat16", "float32")},
    choices={"BLOCK": (128, 512), "EACH": (1, 4)},
)
def swiglu(M: int, N: int, T: str, BLOCK: int, EACH: int) -> tg.Launch:
    """The source: each thread computes EACH elements, a grid apart."""
    blocks = -(-M * N // (BLOCK * EACH))
    return tg.Launch(
        source=f"""
__device__ float load(float x) {{ return x; }}
template <class T> __device__ float load(T x) {{ return wide(x); }}
__device__ void store(float value, float &place) {{ place = value; }}
template <class T> __device__ void store(float value, T &place) {{ narrow(value, place); }}
__device__ float gated(float x, float y) {{ return x / (1.0f + __expf(-x)) * y; }}

extern "C" __global__ void swiglu(const {KINDS[T]} *x, const {KINDS[T]} *y, {KINDS[T]} *out) {{
    #pragma unroll
    for (int k = 0; k < {EACH}; ++k) {{
        const long long i = ((long long)k * {blocks} + blockIdx.x) * {BLOCK} + threadIdx.x;
        if (i < {M * N}LL) store(gated(load(x[i]), load(y[i])), out[i]);
    }}
}}
""",
        grid=(blocks,),
        block=BLOCK,
    )
