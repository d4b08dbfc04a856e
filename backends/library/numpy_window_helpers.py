"""Helper functions of emitted NumPy programs for convolution and pooling: see numpy_helpers.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def windows(x: Array, kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]) -> Array:
    """x[N, C, *S] as sliding windows [N, C, *positions, *kernel]; a view."""
    n = len(kernel)
    count = [(x.shape[2 + i] - dilations[i] * (kernel[i] - 1) - 1) // strides[i] + 1 for i in range(n)]
    steps = [x.strides[2 + i] * strides[i] for i in range(n)] + [x.strides[2 + i] * dilations[i] for i in range(n)]
    shape = [*x.shape[:2], *count, *kernel]
    return np.lib.stride_tricks.as_strided(x, shape, [*x.strides[:2], *steps])


def padded(x: Array, pads: Sequence[int], value: float, dtype: Any) -> Array:
    """x[N, C, *S] padded with a constant (all low pads, then all high pads); x itself without padding."""
    n = len(pads) // 2
    if not any(pads):
        return x.astype(dtype, copy=False)
    space = [pads[i] + x.shape[2 + i] + pads[n + i] for i in range(n)]
    wide = np.full((*x.shape[:2], *space), value, dtype)
    wide[(slice(None), slice(None), *(slice(pads[i], pads[i] + x.shape[2 + i]) for i in range(n)))] = x
    return wide


def conv(x: Array, w: Array, strides: Any, pads: Any, dilations: Any, groups: int, out: Array) -> None:
    """Write a convolution, computed as one matrix product over gathered windows (im2col; allocates the copy), into
    `out`; 16-bit floats via float32."""
    dtype = np.dtype(np.float32) if x.dtype.itemsize == 2 else x.dtype
    n, (outputs, per_group, *kernel) = x.ndim - 2, w.shape
    seen = windows(padded(x, pads, 0, dtype), kernel, strides, dilations)
    order = (0, 1, *range(2 + n, 2 + 2 * n), *range(2, 2 + n))
    columns = seen.transpose(order).reshape(len(x), groups, per_group * int(np.prod(kernel)), -1)
    weight = w.astype(dtype, copy=False).reshape(1, groups, outputs // groups, -1)
    np.copyto(out, np.matmul(weight, columns).reshape(out.shape), casting="unsafe")


def defined_conv(x: Array, w: Array, strides: Any, pads: Any, dilations: Any, groups: int, out: Array) -> None:
    """Write the convolution into `out`, added up in exactly the order of its definition, for bitwise equal results."""
    n, dtype = x.ndim - 2, np.dtype(np.float32) if x.dtype.itemsize == 2 else x.dtype
    around = [(0, 0), (0, 0), *((pads[i], pads[n + i]) for i in range(n))]
    seen = windows(np.pad(x.astype(dtype, copy=False), around), w.shape[2:], strides, dilations)
    inner, outer, axes = w.shape[1], w.shape[0] // groups, [1, *range(2 + n, 2 + 2 * n)]
    weight = w.astype(dtype, copy=False)
    parts = [
        np.tensordot(
            seen[:, g * inner : (g + 1) * inner],
            weight[g * outer : (g + 1) * outer],
            axes=(axes, list(range(1, 2 + n))),
        )
        for g in range(groups)
    ]
    np.copyto(out, np.moveaxis(np.concatenate(parts, axis=-1), -1, 1), casting="unsafe")


def conv_plan(
    w: Array, shape: Any, strides: Any, pads: Any, dilations: Any, groups: int
) -> Callable[[Array, Array], None]:
    """A convolution of x[shape] with w whose scratch memory is allocated here, once."""
    n, (outputs, per_group, *kernel) = len(shape) - 2, w.shape
    space = [pads[i] + shape[2 + i] + pads[n + i] for i in range(n)]
    wide = np.zeros((*shape[:2], *space), w.dtype)
    inner = wide[(slice(None), slice(None), *(slice(pads[i], pads[i] + shape[2 + i]) for i in range(n)))]
    seen = windows(wide, kernel, strides, dilations).transpose(0, 1, *range(2 + n, 2 + 2 * n), *range(2, 2 + n))
    columns = np.empty(seen.shape, w.dtype)
    flat = columns.reshape(shape[0], groups, per_group * int(np.prod(kernel)), -1)
    weight = np.ascontiguousarray(w.reshape(1, groups, outputs // groups, -1))

    def convolve(x: Array, out: Array) -> None:
        np.copyto(inner, x)
        np.copyto(columns, seen)
        np.matmul(weight, flat, out=out.reshape(shape[0], groups, outputs // groups, -1))

    return convolve


def pool(
    x: Array, ufunc: Any, start: float, kernel: Any, strides: Any, pads: Any, dilations: Any, around: Array, work: Array,
    out: Array,
) -> None:  # fmt: skip
    """Write the pooling of x, each window reduced by `ufunc`, padding counted as `start`, into `out`; a sum is divided
    by the window's size. `around` is x, or a buffer for padded x; `work` is out, or wider if sums are 16-bit."""
    if around is not x:
        n = len(kernel)
        around.fill(start)
        around[(slice(None), slice(None), *(slice(pads[i], pads[i] + x.shape[2 + i]) for i in range(n)))] = x
    seen = windows(around, kernel, strides, dilations)
    work.fill(start)
    for place in np.ndindex(*kernel):
        ufunc(work, seen[(..., *place)], out=work)
    if ufunc is np.add:
        np.multiply(work, 1 / int(np.prod(kernel)), out=work)
    if work is not out:
        np.copyto(out, work, casting="unsafe")
