"""A Triton kernel: root-mean-square normalization of rows, with the number of warps and rows per program as choices.

On a machine without a GPU it can be checked in Triton's interpreter:

    tensor-graphs kernels check examples/kernels/rms_norm.py --interpret
"""

import tensor_graphs as tg


def reference(x: tg.Tensor, w: tg.Tensor, *, eps: float = 1e-5) -> tg.Tensor:
    """The normalized rows; `eps` may be any number."""
    return x * tg.rsqrt(tg.mean(x * x, axis=-1, keepdims=True) + eps) * w


@tg.kernel(
    "triton",
    reference=reference,
    inputs={"x": "T[M, N]", "w": "T[1, N]"},
    types={"T": ("float16", "bfloat16", "float32")},
    where="N <= 16384",
    choices={"ROWS": (1, 2), "WARPS": (4, 8)},
)
def rms_norm(M: int, N: int, eps: float, ROWS: int, WARPS: int) -> tg.Launch:
    """The source; sizes and eps are compile-time constants."""
    block = 1 << (N - 1).bit_length()
    return tg.Launch(
        source="""
@triton.jit
def rms_norm(x, w, out, M: tl.constexpr, N: tl.constexpr, EPS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    rows = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None]
    columns = tl.arange(0, BLOCK)[None, :]
    there = (rows < M) & (columns < N)
    values = tl.load(x + rows * N + columns, there, 0.0).to(tl.float32)
    weights = tl.load(w + columns, columns < N, 0.0).to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(values * values, 1) / N + EPS)
    tl.store(out + rows * N + columns, (values * scale[:, None] * weights).to(out.dtype.element_ty), there)
""",
        grid=(-(-M // ROWS),),
        constants={"M": M, "N": N, "EPS": eps, "ROWS": ROWS, "BLOCK": block},
        warps=WARPS,
    )
