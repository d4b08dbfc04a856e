"""Declares library kernels in C for batch norms of a training step, of row-major images: the norm with its statistics,
alone and followed by ReLU, with and without a residual that is added before it, and its gradients, with and without the
ReLU's gradient before them.

Each channel is read twice or three times while it lies in the cache; channels are divided over the threads.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from itertools import product

from ...extract.model.kernel import Call
from ...extract.model.library_kernel import LibraryKernel, identify
from ..library.torch_calls import both, extents, filled, usable
from .call_facts import SIDES, ending, few_elements
from .functions import c_function

TRAINING = """/* The sum of n floats, of their products with another n, or of the squares of their distances from a centre:
   blocks in float, their sums in double. */
static inline __attribute__((always_inline)) double batch_norm_sum(const float *x, const float *z, float centre, int n, int kind)
{
    double total = 0.0;
    for (int begin = 0; begin < n; begin += 1024) {
        const int end = n - begin < 1024 ? n : begin + 1024;
        float sum = 0.0f;
        #pragma omp simd reduction(+ : sum)
        for (int i = begin; i < end; i++) {
            const float d = x[i] - centre;
            sum += kind == 0 ? x[i] : kind == 1 ? d * d : d * z[i];
        }
        total += sum;
    }
    return total;
}
/* Batch norm of n images of c channels of s pixels; r: residual if `added`; act: 1 is relu. */
static inline __attribute__((always_inline)) void batch_norm_written(const float *x, const float *r, float *y, float centre, float scale,
    float shift, int s, int added, int act)
{
    #pragma omp simd
    for (int i = 0; i < s; i++) {
        float v = (x[i] - centre) * scale + shift;
        if (added) v += r[i];
        y[i] = act && v < 0.0f ? 0.0f : v; /* NaN stays */
    }
}
void batch_norm_training(const float *x, const float *gain, const float *shift, const float *residual, float *y, float *mean,
                         float *variance, float *deviation, int n, int c, int s, int eps, int added, int act)
{
    float epsilon;
    __builtin_memcpy(&epsilon, &eps, sizeof epsilon);
    #pragma omp parallel for schedule(static)
    for (int k = 0; k < c; k++) {
        double sum = 0.0, squares = 0.0;
        for (int i = 0; i < n; i++) sum += batch_norm_sum(x + ((int64_t)i * c + k) * s, x, 0.0f, s, 0);
        const double middle = sum / ((double)n * s);
        const float centre = (float)middle;
        for (int i = 0; i < n; i++) squares += batch_norm_sum(x + ((int64_t)i * c + k) * s, x, centre, s, 1);
        const double off = middle - centre, spread = squares / ((double)n * s) - off * off; /* of the exact mean */
        const double scale = 1.0 / __builtin_sqrt(spread + (double)epsilon);
        const float factor = (float)(gain[k] * scale), start = shift[k];
        mean[k] = centre;
        variance[k] = (float)spread;
        deviation[k] = (float)scale;
        for (int i = 0; i < n; i++) {
            const int64_t at = ((int64_t)i * c + k) * s;
            /* constants, so that each loop is vectorized */
            if (added && act) batch_norm_written(x + at, residual + at, y + at, centre, factor, start, s, 1, 1);
            else if (added) batch_norm_written(x + at, residual + at, y + at, centre, factor, start, s, 1, 0);
            else if (act) batch_norm_written(x + at, x, y + at, centre, factor, start, s, 0, 1);
            else batch_norm_written(x + at, x, y + at, centre, factor, start, s, 0, 0);
        }
    }
}
"""
GRADIENTS = """/* An element of the result's gradient: masked 1: zero where y <= 0; 2: zero where the byte is set. */
static inline __attribute__((always_inline)) float batch_norm_masked(float g, float y, unsigned char hidden, int masked)
{
    if (masked == 1) return y <= 0.0f ? 0.0f : g;
    if (masked == 2) return hidden ? 0.0f : g;
    return g;
}
static inline __attribute__((always_inline)) void batch_norm_gradient_sums(const float *x, const float *g, const float *y,
    const unsigned char *hidden, float centre, int s, int masked, double *sum, double *along)
{
    for (int begin = 0; begin < s; begin += 1024) {
        const int end = s - begin < 1024 ? s : begin + 1024;
        float a = 0.0f, b = 0.0f;
        #pragma omp simd reduction(+ : a, b)
        for (int i = begin; i < end; i++) {
            const float v = batch_norm_masked(g[i], masked == 1 ? y[i] : 0.0f, masked == 2 ? hidden[i] : 0, masked);
            a += v;
            b += v * (x[i] - centre);
        }
        *sum += a;
        *along += b;
    }
}
static inline __attribute__((always_inline)) void batch_norm_gradient_written(const float *x, const float *g, const float *y,
    const unsigned char *hidden, float *out, float centre, float scale, float level, float slope, int s, int masked)
{
    #pragma omp simd
    for (int i = 0; i < s; i++) {
        const float v = batch_norm_masked(g[i], masked == 1 ? y[i] : 0.0f, masked == 2 ? hidden[i] : 0, masked);
        out[i] = scale * (v - level - (x[i] - centre) * slope);
    }
}
/* Gradients of operand, gain and shift. mask: of the ReLU behind the norm, its result (masked 1) or bytes (masked 2). */
static inline __attribute__((always_inline)) void batch_norm_gradient_channel(const float *x, const float *g, const void *mask,
    const float *gain, const float *mean, const float *deviation, float *out, float *gain_out, float *shift_out, int n, int c, int s,
    int k, int masked)
{
    double sum = 0.0, along = 0.0;
    const float centre = mean[k];
    const float *const y = mask;
    const unsigned char *const hidden = mask;
    for (int i = 0; i < n; i++) {
        const int64_t at = ((int64_t)i * c + k) * s;
        batch_norm_gradient_sums(x + at, g + at, y + at, hidden + at, centre, s, masked, &sum, &along);
    }
    const double count = (double)n * s, spread = deviation[k];
    if (gain_out) {
        gain_out[k] = (float)(along * spread);
        shift_out[k] = (float)sum;
    }
    const float scale = (float)(gain[k] * spread), level = (float)(sum / count), slope = (float)(along * spread * spread / count);
    for (int i = 0; i < n; i++) {
        const int64_t at = ((int64_t)i * c + k) * s;
        batch_norm_gradient_written(x + at, g + at, y + at, hidden + at, out + at, centre, scale, level, slope, s, masked);
    }
}
void batch_norm_gradients(const float *x, const float *g, const void *mask, const float *gain, const float *mean,
                          const float *deviation, float *out, float *gain_out, float *shift_out, int n, int c, int s, int masked)
{
    #pragma omp parallel for schedule(static)
    for (int k = 0; k < c; k++) {
#define BATCH_NORM_CHANNEL(masked) \\
    batch_norm_gradient_channel(x, g, mask, gain, mean, deviation, out, gain_out, shift_out, n, c, s, k, masked)
        if (masked == 0) BATCH_NORM_CHANNEL(0); /* constants, so that each loop is vectorized */
        else if (masked == 1) BATCH_NORM_CHANNEL(1);
        else BATCH_NORM_CHANNEL(2);
    }
}
"""
SOURCES = {"batch_norm_training": TRAINING, "batch_norm_gradients": GRADIENTS}
RANKS = (3, 4, 5)  # of images
MASKS = {"g": 0, "where(le(y, 0.0), 0.0, g)": 1, "where(y, 0.0, g)": 2}  # gradient before the norm's -> its number in C


def _images(*alike: str) -> Callable[[Call], bool]:
    """Condition on calls: float32 images of one shape (x and the operands `alike`, where they exist), but for masks of
    bools."""

    def condition(call: Call) -> bool:
        shape, places = call.operands["x"].type.shape, call.buffers
        floats = all(o.type.dtype == "float32" for n, o in places.items() if n != "y") and (
            "y" not in places or places["y"].type.dtype in ("float32", "bool")
        )
        return floats and len(shape) >= 3 and all(places[n].type.shape == shape for n in alike if n in places)

    return condition


def _sizes(call: Call) -> str:
    n, c, *space = extents(call.operands["x"])
    size = 1
    for d in space:
        size *= d
    return f"{n}, {c}, {size}"


def _training_code(residual: bool, act: int) -> Callable[[Call], str]:
    def code(call: Call) -> str:
        (eps,) = struct.unpack("<i", struct.pack("<f", call.attrs["eps"]))
        operands = ", ".join(
            call.names[o] for o in ("x", "g", "b", "r" if residual else "x", "out", "out1", "out2", "out3")
        )
        return f"batch_norm_training({operands}, {_sizes(call)}, {eps}, {int(residual)}, {act})"

    identify(code, f"c.batch_norm_training[{residual},{act}]")
    return code


def _gradient_code(masked: int) -> Callable[[Call], str]:
    def code(call: Call) -> str:
        operands = ", ".join(
            call.names[o] for o in ("x", "g", "y" if masked else "g", "w", "m", "r", "out", "out1", "out2")
        )
        return f"batch_norm_gradients({operands}, {_sizes(call)}, {masked})"

    identify(code, f"c.batch_norm_gradients[{masked}]")
    return code


def _mask_fits(masked: int) -> Callable[[Call], bool]:
    return lambda call: masked == 0 or (call.operands["y"].type.dtype == "bool") == (masked == 2)


def batch_norm_rows() -> Iterator[LibraryKernel]:
    """Batch norms of training steps with all epilogues, and their gradients with all masks."""
    fits = both(usable, filled, few_elements, _images("g", "y"))
    training, gradients = (
        {"family": "reduction", "dense": ("*",), "rate": 4.0, **c_function(name, SOURCES[name])} for name in SOURCES
    )
    statistics = "channel_mean(x); channel_variance(x); channel_deviation(x, eps=eps)"
    for (spelled, act), (side, text) in product({"{}": 0, "relu({})": 1}.items(), SIDES.items()):
        term = spelled.format(text.format("batch_norm_training(x, g, b, eps=eps)"))
        yield LibraryKernel(
            f"c.batch_norm_training{side}{ending(spelled)}", "c", f"{term}; {statistics}", _training_code(side != "", act),
            applies=both(usable, filled, few_elements, _images("r")), inplace=("x", "r") if side else ("x",), **training,
        )  # fmt: skip
    for (mask, masked), rank in product(MASKS.items(), RANKS):
        axes, ones = repr((0, *range(2, rank))), ", ".join("1" * (rank - 2))
        m, r = (f"reshape({v}, shape=(1, size(x, 1), {ones}))" for v in "mr")
        yield LibraryKernel(
            f"c.batch_norm_gradients{rank}{('', '_relu', '_hidden')[masked]}", "c",
            f"z := {mask}; batch_norm_gradient(x, z, w, m, r); sum(z * ((x - {m}) * {r}), axes={axes}); sum(z, axes={axes})",
            _gradient_code(masked), when=(f"rank(x) == {rank}",), applies=both(fits, _mask_fits(masked)), inplace=("g", "x"),
            **gradients,
        )  # fmt: skip


__all__ = ["batch_norm_rows"]
