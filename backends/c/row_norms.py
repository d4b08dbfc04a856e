"""Declares library kernels in C for layer norms and RMS norms of rows.

Generated kernels fuse such norms with what surrounds them, but have to be formed, lowered and compiled; NumPy computes
a norm by eight functions. These kernels are there at once, for searches of a few seconds.
"""

from __future__ import annotations

import struct
from math import prod

from ...extract.model.kernel import Call, Code
from ...extract.model.library_kernel import LibraryKernel, identify
from ..library.torch_calls import SINGLE, both, extents, filled, usable
from .call_facts import few_elements
from .functions import c_function

CHUNK = 256  # terms of a partial sum: rounding grows with their number

ROW_NORM = """/* The sum of c numbers, or of squares of their differences from `centre`. */
static inline __attribute__((always_inline)) double row_norm_sum(const float *restrict x, int c, float centre, int squared)
{
    double all = 0.0;
    for (int begin = 0; begin < c; begin += @CHUNK@) {
        const int end = c - begin < @CHUNK@ ? c : begin + @CHUNK@;
        float sum = 0.0f;
        #pragma omp simd reduction(+ : sum)
        for (int i = begin; i < end; i++) sum += squared ? (x[i] - centre) * (x[i] - centre) : x[i];
        all += sum;
    }
    return all;
}
/* Norms of `rows` rows of c numbers: gain * (x - mean) / sqrt(variance + eps) + shift, or, if not `centred`, without mean and shift.
   y may be x. */
void row_norm(const float *x, const float *gain, const float *shift, float *y, int rows, int c, int eps, int centred)
{
    const float epsilon = of_bits((uint32_t)eps);
    #pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < rows; row++) {
        const float *const from = x + row * c;
        float *const to = y + row * c;
        const float mean = centred ? (float)(row_norm_sum(from, c, 0.0f, 0) / c) : 0.0f;
        const float scale = (float)(1.0 / __builtin_sqrt(row_norm_sum(from, c, mean, 1) / c + (double)epsilon));
        if (centred)
            #pragma omp simd
            for (int i = 0; i < c; i++) to[i] = (from[i] - mean) * scale * gain[i] + shift[i];
        else
            #pragma omp simd
            for (int i = 0; i < c; i++) to[i] = from[i] * scale * gain[i];
    }
}
""".replace("@CHUNK@", str(CHUNK))


def _fits(call: Call) -> bool:
    """Condition on calls: a row-major x of known sizes, and one gain for each number of a row."""
    x, width = call.operands["x"], extents(call.operands["x"])[-1]
    lines = all(prod(extents(call.operands[o])) == width for o in "gb" if o in call.operands)
    return x.dense and lines and all(isinstance(d, int) for d in extents(x))


def _code(centred: bool) -> Code:
    def code(call: Call) -> str:
        *rows, width = extents(call.operands["x"])
        (eps,) = struct.unpack("<i", struct.pack("<f", call.attrs["eps"]))
        names = ", ".join(call.names[o] for o in ("x", "g", "b" if centred else "g", "out"))
        return f"row_norm({names}, {prod(rows)}, {width}, {eps}, {int(centred)})"

    return identify(code, f"c.row_norm[{centred}]")


def row_norm_rows() -> list[LibraryKernel]:
    """Layer norms and RMS norms of rows."""
    fits = both(usable, SINGLE, filled, _fits, few_elements)
    return [
        LibraryKernel(
            f"c.{name}", "c", pattern, _code(centred), family="reduction", dense=("*",), applies=fits, inplace=("x",),
            rate=4.0, **c_function("row_norm", ROW_NORM),
        )
        for name, pattern, centred in (
            ("layer_norm", "layer_norm(x, g, b, eps=eps)", True), ("rms_norm", "rms_norm(x, g, eps=eps)", False),
        )
    ]  # fmt: skip


__all__ = ["row_norm_rows"]
