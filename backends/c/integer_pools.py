"""Declares library kernels in C for pooling of channels-last images of bytes: max pooling whose scale and zero point
stay the same (the largest byte of each window, without scaling anything), and the mean of each channel."""

from __future__ import annotations

from math import prod

from ...extract.model.kernel import Call
from ...extract.model.library_kernel import LibraryKernel, identified
from ..library.torch_calls import both, channels_last, extents, filled, of, planar
from .call_facts import channels_last_x, few_elements, image, pads_before, pair
from .functions import c_function
from .tiled_products import MAX_TAPS

POOL = """/* Max pooling of n channels-last images of c bytes a pixel; each window has a pixel. With a scale (`scaled`) below 0 the smallest
   byte is the largest value. flip: 128 for bytes with a sign. */
void bytes_max_pool(const uint8_t *x, const float *scale, uint8_t *y, int scaled, int n, int h, int wide, int c, int oh, int ow, int kh, int kw,
                    int step_h, int step_w, int dil_h, int dil_w, int top, int left, int flip)
{
    const uint8_t turned = (uint8_t)(flip ^ (scaled && *scale < 0.0f ? 255 : 0)); /* bytes ^ turned have the order of values */
    #pragma omp parallel for schedule(static)
    for (int64_t line = 0; line < (int64_t)n * oh; line++) {
        const int row = (int)(line % oh) * step_h - top;
        const uint8_t *const from = x + line / oh * h * wide * c;
        for (int j = 0; j < ow; j++) {
            uint8_t *restrict const to = y + (line * ow + j) * c;
            int any = 0;
            for (int t = 0; t < kh; t++) {
                for (int u = 0; u < kw; u++) {
                    const int v = row + t * dil_h, s = j * step_w - left + u * dil_w;
                    if (v < 0 || v >= h || s < 0 || s >= wide) continue;
                    const uint8_t *restrict const pixel = from + ((int64_t)v * wide + s) * c;
                    if (!any++)
                        for (int i = 0; i < c; i++) to[i] = pixel[i] ^ turned;
                    else
                        for (int i = 0; i < c; i++) to[i] = (pixel[i] ^ turned) > to[i] ? pixel[i] ^ turned : to[i];
                }
            }
            if (turned)
                for (int i = 0; i < c; i++) to[i] ^= turned;
        }
    }
}
"""
MEAN = """/* Means over the pixels of n channels-last images of c bytes a pixel, as floats: sums of bytes are exact. flip: 128 for bytes with
   a sign; zero: the zero point of bytes ^ flip. */
void bytes_mean(const uint8_t *x, const float *scale, const uint8_t *point, float *y, int n, int pixels, int c, int flip)
{
    const int zero = *point ^ flip;
    const double by = (double)*scale / pixels;
    #pragma omp parallel for schedule(static)
    for (int64_t task = 0; task < (int64_t)n * ((c + 63) / 64); task++) {
        const int begin = (int)(task % ((c + 63) / 64)) * 64, count = c - begin < 64 ? c - begin : 64;
        const int64_t image = task / ((c + 63) / 64);
        const uint8_t *from = x + image * pixels * c + begin;
        int32_t sums[64] = {0};
        for (int p = 0; p < pixels; p++, from += c) {
            if (count == 64)
                for (int i = 0; i < 64; i++) sums[i] += from[i] ^ flip;
            else
                for (int i = 0; i < count; i++) sums[i] += from[i] ^ flip;
        }
        for (int i = 0; i < count; i++) y[image * c + begin + i] = (float)((sums[i] - (int64_t)pixels * zero) * by);
    }
}
"""
MOST_PIXELS = (2**31 - 1) // 255  # whose bytes have a sum in int32
_ATTRS = "kernel=kernel, strides=strides, pads=pads, dilations=dilations"

#: name -> pattern of max pooling: of values with a scale and a zero point, and of plain bytes
POOLS = {
    "c.bytes_max_pool": f"quantize(max_pool(dequantize(x, s, o), {_ATTRS}), s, o)",
    **{
        f"c.{kind}_max_pool": f"cast(max_pool(cast(x, dtype='float32'), {_ATTRS}), dtype='{kind}')"
        for kind in ("uint8", "int8")
    },
}


def _fits(call: Call) -> bool:
    """Condition on calls: each window has a pixel of the image, scale and zero point are one number each."""
    a = call.attrs
    sizes = all(isinstance(d, int) for o in call.buffers.values() for d in extents(o))
    inside = all(p < (k - 1) * d + 1 for p, k, d in zip(a["pads"], (*a["kernel"],) * 2, (*a["dilations"],) * 2))
    points = [call.operands[n] for n in "so" if n in call.operands]
    single = all(prod(extents(o)) == 1 for o in points) and all(o.type.dtype == "float32" for o in points[:1])
    return sizes and inside and single and len(a["kernel"]) == 2 and prod(a["kernel"]) <= MAX_TAPS


def _bytes(call: Call) -> bool:
    """Condition on calls: the image and the result are bytes of one dtype."""
    return call.operands["x"].type.dtype == call.output.type.dtype and of("uint8", "int8")(Call({}, call.output, {}))


@identified("c.bytes_max_pool")
def _code(call: Call) -> str:
    (n, c, h, w), (_, _, oh, ow) = image(call.operands["x"]), image(call.output)
    window = (*call.attrs["kernel"], *pair(call, "strides"), *pair(call, "dilations"), *pads_before(call))
    flip = 128 * (call.output.type.dtype == "int8")
    numbers = ", ".join(map(str, (n, h, w, c, oh, ow, *window, flip)))
    scaled = "s" in call.operands
    scale = call.names["s" if scaled else "x"]
    return f"bytes_max_pool({call.names['x']}, {scale}, {call.names['out']}, {int(scaled)}, {numbers})"


def _averages(call: Call) -> bool:
    """Condition on calls: the mean of each channel of an image with known sizes, one scale and one zero point."""
    x, s, z = (call.operands[n] for n in "xsz")
    sizes = all(isinstance(d, int) for o in call.buffers.values() for d in extents(o))
    single = prod(extents(s)) == prod(extents(z)) == 1 and s.type.dtype == "float32" and z.type.dtype == x.type.dtype
    last = tuple(call.attrs["axes"]) == tuple(range(2, x.type.rank))
    return sizes and single and last and x.type.dtype in ("uint8", "int8") and prod(extents(x)[2:]) <= MOST_PIXELS


@identified("c.bytes_mean")
def _mean_code(call: Call) -> str:
    n, c, h, w = image(call.operands["x"])
    flip = 128 * (call.operands["x"].type.dtype == "int8")
    operands = ", ".join(call.names[o] for o in ("x", "s", "z", "out"))
    return f"bytes_mean({operands}, {n}, {h * w}, {c}, {flip})"


def integer_pool_rows() -> list[LibraryKernel]:
    """Max pooling of bytes, and means of dequantized bytes."""
    return [
        LibraryKernel(
            "c.bytes_mean", "c", "mean(dequantize(x, s, z), axes=axes)", _mean_code, family="reduction", rate=16.0,
            reads_last=("x",), applies=both(filled, _averages, channels_last_x, few_elements), **c_function("bytes_mean", MEAN),
        ),
        *(LibraryKernel(
            name, "c", pattern, _code, family="reduction",
            layout=channels_last, rate=16.0, reads_last=("x",),
            applies=both(filled, planar, _bytes, _fits, channels_last_x, few_elements), **c_function("bytes_max_pool", POOL),
        ) for name, pattern in POOLS.items())
    ]  # fmt: skip


__all__ = ["integer_pool_rows"]
