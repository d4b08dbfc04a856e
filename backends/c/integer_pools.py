"""Declares a library kernel in C for max pooling of channels-last images of bytes whose scale and zero point stay the
same: the largest byte of each window, without scaling anything."""

from __future__ import annotations

from math import prod

from ...extract.model.kernel import Call
from ...extract.model.library_kernel import LibraryKernel, identified
from ..library.torch_calls import both, channels_last, extents, filled, of, planar
from .convolutions import channels_last_x, few_elements, image, pads_before, pair
from .functions import c_function
from .tiled_products import MAX_TAPS

POOL = """/* Max pooling of n channels-last images of c bytes a pixel; each window has a pixel. A scale below 0 makes the smallest
   byte the largest value. flip: 128 for bytes with a sign. */
void bytes_max_pool(const uint8_t *x, const float *scale, uint8_t *y, int n, int h, int wide, int c, int oh, int ow, int kh, int kw,
                    int step_h, int step_w, int dil_h, int dil_w, int top, int left, int flip)
{
    const uint8_t turned = (uint8_t)(flip ^ (*scale < 0.0f ? 255 : 0)); /* bytes ^ turned have the order of values */
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
_ATTRS = "kernel=kernel, strides=strides, pads=pads, dilations=dilations"


def _fits(call: Call) -> bool:
    """Condition on calls: each window has a pixel of the image, scale and zero point are one number each."""
    a = call.attrs
    sizes = all(isinstance(d, int) for o in call.buffers.values() for d in extents(o))
    inside = all(p < (k - 1) * d + 1 for p, k, d in zip(a["pads"], (*a["kernel"],) * 2, (*a["dilations"],) * 2))
    single = prod(extents(call.operands["s"])) == prod(extents(call.operands["o"])) == 1
    scale = call.operands["s"].type.dtype == "float32"
    return sizes and inside and single and scale and len(a["kernel"]) == 2 and prod(a["kernel"]) <= MAX_TAPS


def _bytes(call: Call) -> bool:
    """Condition on calls: the image and the result are bytes."""
    return of("uint8", "int8")(Call({"x": call.operands["x"]}, call.output, {}))


@identified("c.bytes_max_pool")
def _code(call: Call) -> str:
    (n, c, h, w), (_, _, oh, ow) = image(call.operands["x"]), image(call.output)
    window = (*call.attrs["kernel"], *pair(call, "strides"), *pair(call, "dilations"), *pads_before(call))
    flip = 128 * (call.output.type.dtype == "int8")
    numbers = ", ".join(map(str, (n, h, w, c, oh, ow, *window, flip)))
    return f"bytes_max_pool({call.names['x']}, {call.names['s']}, {call.names['out']}, {numbers})"


def integer_pool_rows() -> list[LibraryKernel]:
    """Max pooling of bytes, the only library kernel of this module."""
    return [
        LibraryKernel(
            "c.bytes_max_pool", "c", f"quantize(max_pool(dequantize(x, s, o), {_ATTRS}), s, o)", _code, family="reduction",
            layout=channels_last, rate=16.0, reads_last=("x",),
            applies=both(filled, planar, _bytes, _fits, channels_last_x, few_elements), **c_function("bytes_max_pool", POOL),
        )
    ]  # fmt: skip


__all__ = ["integer_pool_rows"]
