"""A C kernel: cumulative sums of squares along rows, as in docs/tutorial/first-kernel.md."""

import tensor_graphs as tg


@tg.kernel("c", reference=lambda x: tg.cumsum(x * x, axis=-1), inputs={"x": "float32[M, N]"})
def energy(M: int, N: int) -> str:
    """The source for `M` rows of `N` numbers. Eight rows at a time: an addition waits only for the last one of its own
    row."""
    return f"""
void energy(const float *x, float *out) {{
    for (long first = 0; first < {M}; first += 8) {{
        long rows = {M} - first < 8 ? {M} - first : 8;
        double total[8] = {{0}};
        for (long i = 0; i < {N}; ++i)
            for (long r = 0; r < rows; ++r) {{
                long at = (first + r) * {N} + i;
                total[r] += (double)x[at] * x[at];
                out[at] = total[r];
            }}
    }}
}}
"""
