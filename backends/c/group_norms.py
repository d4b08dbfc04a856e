"""Declares library kernels in C for group norms of channels-last images, alone and followed by SiLU.

A generated kernel reduces over neighbouring memory, so it takes row-major images only; convolutions in C are
channels-last. Here each channel has sums of its own, which are then added for each group: blocks of pixels are divided
over the threads.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from hashlib import blake2b

from ...extract.model.kernel import Call
from ...extract.model.library_kernel import LibraryKernel, identify
from ..library.torch_calls import SINGLE, both, channels_last, extents, filled, usable
from .convolutions import channels_last_x, few_elements

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
void tiled_group_norm(const float *restrict x, const float *restrict gain, const float *restrict shift, float *restrict y,
                      float *restrict room, int n, int s, int c, int groups, int eps, int silu)
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
            const float *restrict in = from + i * c;
            float *restrict out = to + i * c;
            if (silu) {
                #pragma omp simd
                for (int k = 0; k < c; k++) {
                    const float v = (in[k] - centre[k]) * scale[k] + shift[k];
                    out[k] = v / (1.0f + exp_f(-v));
                }
            } else {
                #pragma omp simd
                for (int k = 0; k < c; k++) out[k] = (in[k] - centre[k]) * scale[k] + shift[k];
            }
        }
    }
}
"""
GROUP_NORM = re.sub("@.*?@", lambda found: str(CONSTANTS[found[0]]), _TEXT)
SOURCE = {"tiled_group_norm": GROUP_NORM}
VERSION = blake2b(GROUP_NORM.encode(), digest_size=4).hexdigest()


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


def _code(silu: bool) -> Callable[[Call], str]:
    def code(call: Call) -> str:
        n, c, h, w = extents(call.operands["x"])
        (eps,) = struct.unpack("<i", struct.pack("<f", call.attrs["eps"]))
        operands = ", ".join(call.names[o] for o in ("x", "g", "b", "out", "scratch"))
        return f"tiled_group_norm({operands}, {n}, {h * w}, {c}, {call.attrs['groups']}, {eps}, {int(silu)})"

    identify(code, f"c.tiled_group_norm[{silu}]")
    return code


def group_norm_rows() -> list[LibraryKernel]:
    """Group norms of channels-last images, and group norms with SiLU behind."""
    pattern = "group_norm(x, g, b, groups=groups, eps=eps)"
    return [
        LibraryKernel(
            f"c.{name}", "c", text, _code(silu), family="reduction", layout=channels_last, dense=("g", "b"), scratch=_scratch,
            applies=both(usable, SINGLE, filled, _fits, few_elements), source=lambda call: SOURCE, rate=4.0,
            setup=("address", "c_function", "c_library"), version=VERSION, reads_last=("x",),
        )
        for name, text, silu in (("group_norm", pattern, False), ("group_norm_silu", f"silu({pattern})", True))
    ]  # fmt: skip


__all__ = ["group_norm_rows"]
