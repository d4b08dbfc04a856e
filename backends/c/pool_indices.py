"""Declares library kernels in C for max pooling of a training step, of row-major images with two spatial axes: the
pooled values with the indices of the maxima, and the gradient, which adds at these indices.

Planes (one channel of one image) are divided over the threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ...extract.model.kernel import Call
from ...extract.model.library_kernel import LibraryKernel, identify
from ..library.torch_calls import both, extents, filled, usable
from .call_facts import few_elements
from .functions import c_function

POOL = """/* Max pooling of planes of h x w floats with the index of each window's first maximum in its plane (NaN wins). */
void max_pool_with_indices(const float *x, float *y, int64_t *indices, int planes, int h, int w, int oh, int ow, int kh, int kw,
                           int step_h, int step_w, int dil_h, int dil_w, int top, int left)
{
    #pragma omp parallel for schedule(static)
    for (int64_t plane = 0; plane < planes; plane++) {
        const float *const from = x + plane * h * w;
        for (int i = 0; i < oh; i++) {
            int first = 0, last = kh;
            while (first < kh && i * step_h - top + first * dil_h < 0) first++;
            while (last > first && i * step_h - top + (last - 1) * dil_h >= h) last--;
            for (int j = 0; j < ow; j++) {
                float best = -__builtin_inff();
                int64_t at = -1, start = -1;
                for (int a = first; a < last; a++) {
                    const int row = i * step_h - top + a * dil_h;
                    for (int b = 0; b < kw; b++) {
                        const int column = j * step_w - left + b * dil_w;
                        if (column < 0 || column >= w) continue;
                        const int place = row * w + column;
                        const float v = from[place];
                        if (start < 0) start = place;
                        if (v > best || (v != v && best == best)) { best = v; at = place; }
                    }
                }
                y[plane * oh * ow + i * ow + j] = best;
                indices[plane * oh * ow + i * ow + j] = at < 0 ? start : at;
            }
        }
    }
}
"""
GRADIENT = """/* Gradient of max pooling: each element of g added at its index in a plane of `size` floats. */
void max_pool_gradient(const float *g, const int64_t *indices, float *y, int planes, int pooled, int size)
{
    #pragma omp parallel for schedule(static)
    for (int64_t plane = 0; plane < planes; plane++) {
        float *const to = y + plane * size;
        __builtin_memset(to, 0, sizeof(float) * size);
        for (int64_t i = plane * pooled; i < (plane + 1) * pooled; i++) {
            const int64_t at = indices[i] < 0 ? indices[i] + size : indices[i];
            if (at >= 0 && at < size) to[at] += g[i];
        }
    }
}
"""
_GEOMETRY = "kernel=kernel, strides=strides, pads=pads, dilations=dilations"


def _floats(call: Call) -> bool:
    """Condition on calls: float32 images of two spatial axes, of known sizes."""
    named = [call.operands[n] for n in ("x", "g") if n in call.operands]
    return all(o.type.dtype == "float32" and o.type.rank == 4 for o in (*named, call.output))


def _filled_windows(call: Call) -> bool:
    """Condition on calls: padding is smaller than the window, so that no window lies outside of the image."""
    a = call.attrs
    reach = [(k - 1) * d + 1 for k, d in zip(a["kernel"], a["dilations"])]
    return all(low < r and high < r for low, high, r in zip(a["pads"][:2], a["pads"][2:], reach))


def _pool_code(call: Call) -> str:
    a, (n, c, h, w), (_, _, oh, ow) = call.attrs, extents(call.operands["x"]), extents(call.output)
    sizes = (n * c, h, w, oh, ow, *a["kernel"], *a["strides"], *a["dilations"], *a["pads"][:2])
    return f"max_pool_with_indices({call.names['x']}, {call.names['out']}, {call.names['out1']}, {', '.join(map(str, sizes))})"


def _gradient_code(call: Call) -> str:
    (n, c, h, w), (_, _, oh, ow) = extents(call.output), extents(call.operands["g"])
    operands = ", ".join(call.names[o] for o in ("g", "i", "out"))
    return f"max_pool_gradient({operands}, {n * c}, {oh * ow}, {h * w})"


def _long_indices(call: Call) -> bool:
    return call.operands["i"].type.dtype == "int64"


def _row(
    name: str, pattern: str, code: Callable[[Call], str], function: str, text: str, *conditions: Any
) -> LibraryKernel:
    return LibraryKernel(
        f"c.{name}", "c", pattern, identify(code, f"c.{name}"), family="reduction", dense=("*",), rate=4.0,
        applies=both(usable, filled, few_elements, _floats, *conditions), **c_function(function, text),
    )  # fmt: skip


def pool_index_rows() -> Iterator[LibraryKernel]:
    """Max pooling with indices, and its gradient."""
    yield _row(
        "max_pool_with_indices", f"max_pool(x, {_GEOMETRY}); max_pool_indices(x, {_GEOMETRY})", _pool_code,
        "max_pool_with_indices", POOL, _filled_windows,
    )  # fmt: skip
    yield _row("max_pool_gradient", "max_pool_gradient(g, i, shape=shape)", _gradient_code, "max_pool_gradient", GRADIENT,
               _long_indices)  # fmt: skip


__all__ = ["pool_index_rows"]
