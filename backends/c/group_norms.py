"""Declares library kernels in C for group norms of channels-last images, alone and followed by ReLU or SiLU, with and
without a residual that is added before the activation.

A generated kernel reduces over neighbouring memory, so it takes row-major images only; convolutions in C are
channels-last. Here each channel has sums of its own, which are then added for each group: blocks of pixels are divided
over the threads.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from itertools import product

from ...extract.model.kernel import Call
from ...extract.model.library_kernel import LibraryKernel, identify
from ..library.torch_calls import SINGLE, both, channels_last, extents, filled, residual_fits_last, usable
from .call_facts import SIDES, channels_last_x, ending, few_elements
from .functions import c_function

BLOCK = 64  # pixels of a partial sum: rounding grows with their number
MOST_GROUPS = 1024  # whose means are on the stack
CONSTANTS = {"@BLOCK@": BLOCK, "@BLOCK-1@": BLOCK - 1, "@MOST_GROUPS@": MOST_GROUPS}  # placeholder in C -> value

_TEXT = """/* Group norm of n channels-last images of s pixels and c channels. room: (s / @BLOCK@ rounded up + 2) * c floats. */
static inline __attribute__((always_inline)) void group_norm_sums(const float *restrict from, const float *restrict centre,
    float *restrict part, int pixels, int c, int squared)
{
    for (int k = 0; k < c; k++) part[k] = 0.0f;
    for (int i = 0; i < pixels; i++, from += c) {
        #pragma omp simd
        for (int k = 0; k < c; k++) {
            const float d = squared ? from[k] - centre[k] : from[k];
            part[k] += squared ? d * d : d;
        }
    }
}
/* The mean of each group, of the sums in `part` of `blocks` blocks of pixels. */
static inline void group_norm_means(const float *part, int blocks, int c, int groups, double *mean, int64_t s)
{
    const int each = c / groups;
    for (int g = 0; g < groups; g++) {
        double sum = 0.0;
        for (int block = 0; block < blocks; block++)
            for (int k = g * each; k < (g + 1) * each; k++) sum += part[(int64_t)block * c + k];
        mean[g] = sum / ((double)s * each);
    }
}
/* Write a pixel: normed, a residual r added (if `added`; r may be `out`), activation: 0 none, 1 relu, 2 silu. */
static inline __attribute__((always_inline)) void group_norm_pixel(const float *restrict in, const float *r,
    const float *restrict centre, const float *restrict scale, const float *restrict shift, float *out, int c, int added, int act)
{
    #pragma omp simd
    for (int k = 0; k < c; k++) {
        float v = (in[k] - centre[k]) * scale[k] + shift[k];
        if (added) v += r[k];
        if (act == 1) v = v < 0.0f ? 0.0f : v; /* NaN stays */
        if (act == 2) v = v / (1.0f + exp_f(-v));
        out[k] = v;
    }
}
/* added: whether there is a residual. */
void tiled_group_norm(const float *restrict x, const float *restrict gain, const float *restrict shift, const float *residual,
                      float *y, float *restrict room, int n, int s, int c, int groups, int eps, int added, int act)
{
    float epsilon;
    __builtin_memcpy(&epsilon, &eps, sizeof epsilon);
    const int blocks = (s + @BLOCK-1@) / @BLOCK@, each = c / groups;
    float *const centre = room, *const scale = room + c, *const part = room + 2 * (int64_t)c;
    double mean[@MOST_GROUPS@]; /* MOST_GROUPS */
    for (int image = 0; image < n; image++) {
        const float *const from = x + (int64_t)image * s * c;
        float *const to = y + (int64_t)image * s * c;
        for (int squared = 0; squared < 2; squared++) {
            #pragma omp parallel for schedule(static)
            for (int64_t block = 0; block < blocks; block++) {
                const int pixels = s - block * @BLOCK@ < @BLOCK@ ? (int)(s - block * @BLOCK@) : @BLOCK@;
                group_norm_sums(from + block * @BLOCK@ * c, centre, part + block * c, pixels, c, squared);
            }
            group_norm_means(part, blocks, c, groups, mean, s);
            for (int k = 0; k < c; k++) {
                if (squared) scale[k] = (float)(gain[k] / __builtin_sqrt(mean[k / each] + (double)epsilon));
                else centre[k] = (float)mean[k / each];
            }
        }
        #pragma omp parallel for schedule(static)
        for (int64_t i = 0; i < s; i++) {
            const float *const in = from + i * c, *const r = residual + ((int64_t)image * s + i) * c;
            float *const out = to + i * c;
#define GROUP_NORM_PIXEL(added, act) group_norm_pixel(in, r, centre, scale, shift, out, c, added, act)
            /* constants, so that each loop is vectorized */
            if (added && act == 2) GROUP_NORM_PIXEL(1, 2);
            else if (added && act == 1) GROUP_NORM_PIXEL(1, 1);
            else if (added) GROUP_NORM_PIXEL(1, 0);
            else if (act == 2) GROUP_NORM_PIXEL(0, 2);
            else if (act == 1) GROUP_NORM_PIXEL(0, 1);
            else GROUP_NORM_PIXEL(0, 0);
        }
    }
}
"""
GROUP_NORM = re.sub("@.*?@", lambda found: str(CONSTANTS[found[0]]), _TEXT)
ACTIVATIONS = {"{}": 0, "relu({})": 1, "silu({})": 2}  # activation pattern -> its number in C


def _fits(call: Call) -> bool:
    """Condition on calls: x is a channels-last image of a few groups, on which the norm's axes are divided evenly."""
    x = extents(call.operands["x"])
    return (
        len(x) == 4
        and all(isinstance(d, int) for d in x)
        and call.attrs["groups"] <= MOST_GROUPS
        and channels_last_x(call)
    )


def _scratch(call: Call) -> int:
    """Bytes of the sums of all blocks of pixels, and of centre and scale of each channel."""
    _, c, h, w = extents(call.operands["x"])
    return 4 * c * (-(-h * w // BLOCK) + 2)


def _code(residual: bool, act: int) -> Callable[[Call], str]:
    def code(call: Call) -> str:
        n, c, h, w = extents(call.operands["x"])
        (eps,) = struct.unpack("<i", struct.pack("<f", call.attrs["eps"]))
        operands = ", ".join(call.names[o] for o in ("x", "g", "b", "r" if residual else "x", "out", "scratch"))
        return f"tiled_group_norm({operands}, {n}, {h * w}, {c}, {call.attrs['groups']}, {eps}, {int(residual)}, {act})"

    identify(code, f"c.tiled_group_norm[{residual},{act}]")
    return code


def group_norm_rows() -> list[LibraryKernel]:
    """Group norms of channels-last images with all epilogues."""
    norm = "group_norm(x, g, b, groups=groups, eps=eps)"
    found = []
    for (spelled, act), (side, text) in product(ACTIVATIONS.items(), SIDES.items()):
        residual, fits = side != "", both(usable, SINGLE, filled, _fits, few_elements)
        found.append(LibraryKernel(
            f"c.group_norm{side}{ending(spelled)}", "c", spelled.format(text.format(norm)), _code(residual, act), family="reduction",
            layout=channels_last, dense=("g", "b"), scratch=_scratch, applies=both(fits, residual_fits_last) if residual else fits,
            inplace=("r",) if residual else (), rate=4.0, reads_last=("x",),
            **c_function("tiled_group_norm", GROUP_NORM),
        ))  # fmt: skip
    return found


__all__ = ["group_norm_rows"]
