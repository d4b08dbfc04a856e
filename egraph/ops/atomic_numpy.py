"""Defines the meaning, on NumPy arrays, of the atomic ops (ops without a decomposition), where it is not one NumPy
function.

A function of an op with attributes takes them as its first argument, by name. Low-precision floats may be computed in
their own dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from ..types import dtypes

Array = np.ndarray[Any, Any]


def extreme(f: Callable[..., Array], empty: Callable[[str], float | int]) -> Callable[..., Array]:
    """Reduction for the op max or min: NumPy's function `f`, which gives the identity `empty(dtype)` for 0 elements."""

    def reduce(x: Array, axis: Any, keepdims: bool) -> Array:
        if x.size:
            return f(x, axis=axis, keepdims=keepdims)
        shape = [1 if i in axis else d for i, d in enumerate(x.shape)]
        return np.full(shape, empty(dtypes.name_of(x.dtype)), x.dtype)

    return reduce


def rounded_to(half: str) -> Callable[[Array], Array]:
    """Rounding of floats to the 16-bit dtype `half`, in their own dtype; float64 values, which stand for real numbers,
    stay as they are."""
    narrow = dtypes.numpy_dtype(half)

    def rounded(x: Array) -> Array:
        return x if x.dtype == np.float64 else x.astype(narrow).astype(x.dtype)

    return quiet(rounded)


def sum_(x: Array, axis: Any, keepdims: bool) -> Array:
    """NumPy's sum over the axes `axis` in the dtype of `x`; 16-bit floats accumulate in float32. `keepdims`: these axes
    stay, with size 1."""
    wide = np.float32 if x.dtype.itemsize == 2 and x.dtype.kind not in "iu" else None
    return np.asarray(np.sum(x, axis=axis, keepdims=keepdims, dtype=wide or x.dtype)).astype(x.dtype, copy=False)


def matmul(x: Array, y: Array) -> Array:
    """NumPy's matmul in the dtype of the operands; 16-bit floats accumulate in float32."""
    if x.dtype.itemsize == 2 and x.dtype.kind not in "iu":  # accumulate 16-bit floats in float32, as every backend does
        return np.asarray(np.matmul(x.astype(np.float32), y.astype(np.float32))).astype(x.dtype)
    if x.dtype.kind in "iu":
        out = np.empty((*np.broadcast_shapes(x.shape[:-2], y.shape[:-2]), x.shape[-2], y.shape[-1]), x.dtype)
        integer_product(x, y, out)
        return out
    return np.asarray(np.matmul(x, y))


def integer_product(x: Any, w: Any, out: Any) -> None:
    """Write the product of matrices of integers to out. Sums that fit float64 exactly are computed in it, since NumPy
    multiplies matrices of integers in plain loops; others wrap around."""
    if x.dtype.kind in "iu" and x.size and w.size:
        largest = [max(abs(int(v.min())), abs(int(v.max()))) for v in (x, w)]
        if largest[0] * largest[1] * x.shape[-1] < 1 << 53:
            found = np.matmul(x.astype(np.float64), w.astype(np.float64))
            np.copyto(out, found.astype(np.int64), casting="unsafe")
            return
    np.matmul(x, w, out=out)


def sliding(x: Array, axis: int, size: int, stride: int, dilation: int) -> Array:
    """View of an array's sliding windows along `axis` (NumPy strides); the elements of a window are a new last axis.

    Windows have `size` elements, `dilation` apart, and begin `stride` apart.
    """
    count = (x.shape[axis] - dilation * (size - 1) - 1) // stride + 1
    shape = (*x.shape[:axis], count, *x.shape[axis + 1 :], size)
    step = x.strides[axis]
    strides = (*x.strides[:axis], step * stride, *x.strides[axis + 1 :], step * dilation)
    return as_strided(x, shape, strides, writeable=False)


#: Most taps (elements of a filter) of a depthwise convolution that are added one after another. A sum of this length in
#: order rounds about as a matrix product does.
TAPS = 64


def conv(attrs: Mapping[str, Any], x: Array, w: Array) -> Array:
    """NumPy meaning of the op `conv` with these attributes: matrix products of windows and weights, group by group;
    for depthwise convolutions of at most TAPS taps, the sum over the taps of whole channels (a matrix product for each
    channel takes 1.2 to 5 times as long).

    16-bit floats accumulate in float32.
    """
    n, groups, pads = x.ndim - 2, attrs["groups"], attrs["pads"]
    wide = np.float32 if x.dtype.itemsize == 2 else x.dtype
    padded = np.pad(x.astype(wide, copy=False), [(0, 0), (0, 0), *((pads[i], pads[n + i]) for i in range(n))])
    for i in range(n):
        padded = sliding(padded, 2 + i, w.shape[2 + i], attrs["strides"][i], attrs["dilations"][i])
    weights = w.astype(wide, copy=False)
    if groups > 1 and w.shape[1] == 1 and np.prod(w.shape[2:]) <= TAPS:
        return _depthwise(padded, weights, groups).astype(x.dtype, copy=False)
    per_in, per_out = w.shape[1], w.shape[0] // groups
    axes = [1, *range(2 + n, 2 + 2 * n)]
    parts = [
        np.tensordot(
            padded[:, g * per_in : (g + 1) * per_in],
            weights[g * per_out : (g + 1) * per_out],
            axes=(axes, [1, *range(2, 2 + n)]),
        )
        for g in range(groups)
    ]
    return np.ascontiguousarray(np.moveaxis(np.concatenate(parts, axis=-1), -1, 1)).astype(x.dtype, copy=False)


def _depthwise(windows: Array, w: Array, groups: int) -> Array:
    """Convolution with one input channel per group. `windows`: [batch, groups, *positions, *taps]; `w`: [groups * m, 1,
    *taps]; returns [batch, groups * m, *positions]."""
    n = w.ndim - 2
    positions = windows.shape[2 : 2 + n]
    found = np.zeros((windows.shape[0], groups, w.shape[0] // groups, *positions), windows.dtype)
    product = np.empty_like(found)
    for tap in np.ndindex(*w.shape[2:]):
        factors = w[(..., *tap)].reshape(groups, -1, *n * [1])
        np.multiply(windows[(..., *tap)][:, :, None], factors, out=product)
        found += product
    return found.reshape(windows.shape[0], w.shape[0], *positions)


def slice_(attrs: Mapping[str, Any], x: Array) -> Array:
    """View of the elements `start`, `start + step`, … below `stop` of `x` along `axis` (all four in `attrs`)."""
    found: Array = x[(slice(None),) * attrs["axis"] + (slice(attrs["start"], attrs["stop"], attrs["step"]),)]
    return found


def pad(attrs: Mapping[str, Any], x: Array) -> Array:
    """`x` with `lo` elements `value` before and `hi` after it along `axis` (all four in `attrs`)."""
    widths = [(0, 0)] * x.ndim
    widths[attrs["axis"]] = (attrs["lo"], attrs["hi"])
    return np.pad(x, widths, constant_values=np.asarray(attrs["value"]).astype(x.dtype))


def iota(attrs: Mapping[str, Any]) -> Array:
    """Read-only view of the shape `shape` whose elements are their index along `axis` (both in `attrs`)."""
    shape, axis = attrs["shape"], attrs["axis"]
    line = np.arange(shape[axis]).astype(dtypes.numpy_dtype(attrs["dtype"]))
    return np.broadcast_to(line.reshape([-1 if i == axis else 1 for i in range(len(shape))]), shape)


def cast(attrs: Mapping[str, Any], x: Array) -> Array:
    """`x` in the dtype that `attrs` gives. Floats are truncated to ints; which ints NaN and too large floats give is
    unspecified."""
    target = dtypes.numpy_dtype(attrs["dtype"])
    if target.kind in "iu" and x.dtype.kind not in "iub":
        with np.errstate(invalid="ignore"):  # out of range and NaN are unspecified, as in C
            return np.trunc(x.astype(np.float64)).astype(target)
    with np.errstate(over="ignore"):
        return x.astype(target)


@cache
def _float8_values() -> Array:
    """Value of each of the 256 codes of float8 e4m3fn, as float32."""
    import ml_dtypes

    return np.asarray(np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32))


def from_float8(attrs: Mapping[str, Any], x: Array) -> Array:
    """The values of codes `x` (uint8) of float8 e4m3fn, in the float dtype that `attrs` gives."""
    found: Array = np.take(_float8_values(), x)
    return found.astype(dtypes.numpy_dtype(attrs.get("dtype", "float64")))


def along(index: Array, axis: int) -> tuple[Array, ...]:
    """NumPy index arrays that select, for every position of `index`, the element of an array at `index` along `axis`
    and at the same position along all other axes."""
    grid = np.ogrid[tuple(slice(n) for n in index.shape)]
    return tuple(index if d == axis else g for d, g in enumerate(grid))


def inside(index: Array, size: int) -> Array:
    """Indices into an axis of `size` elements made valid: negative ones count from the end, out-of-range ones are
    clamped."""
    index = index.astype(np.int64, copy=False)  # a narrow index dtype may not be able to hold the size
    return np.clip(np.where(index < 0, index + size, index), 0, size - 1)


def scatter(attrs: Mapping[str, Any], x: Array, index: Array, updates: Array) -> Array:
    """Copy of `x` with `updates` written at `index` along `axis`.

    `axis` and `mode` are in `attrs`. `mode`: "set", or the operation that combines them with the elements of `x`:
    "add", "mul", "max", "min".
    """
    out = x.copy()
    spot = along(index, attrs["axis"])
    if attrs["mode"] == "set":
        out[spot] = updates
    else:
        {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}[attrs["mode"]].at(out, spot, updates)
    return out


def argsort(attrs: Mapping[str, Any], x: Array) -> Array:
    """Indices that sort `x` along `axis`, stable; largest first if `descending` (both in `attrs`)."""
    if not attrs["descending"]:
        return np.argsort(x, axis=attrs["axis"], kind="stable")
    # stable descending: sort the flipped array, then flip the result and its indices
    flipped = np.flip(x, attrs["axis"])
    order = np.flip(np.argsort(flipped, axis=attrs["axis"], kind="stable"), attrs["axis"])
    return np.asarray(x.shape[attrs["axis"]] - 1 - order)


def div(x: Array, y: Array) -> Array:
    """Quotient in the dtype of `x`, without warnings about division by zero."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.true_divide(x, y).astype(x.dtype, copy=False)


def power(x: Array, y: Array) -> Array:
    """pow of `x` and `y`, computed with an exponent stored for every element.

    For an exponent broadcast with stride 0 NumPy uses squares, roots and quotients, which differ in bits and, for -0
    and -inf, in value.
    """
    shape = np.broadcast_shapes(x.shape, y.shape)
    exponents = np.ascontiguousarray(np.broadcast_to(y, shape))
    return np.asarray(np.power(np.atleast_1d(x), np.atleast_1d(exponents)).reshape(shape))


def quiet(f: Callable[..., Array]) -> Callable[..., Array]:
    """A function that calls `f` without NumPy's warnings and converts its result to the dtype of the first array."""

    def run(*arrays: Array) -> Array:
        with np.errstate(all="ignore"):
            return f(*arrays).astype(arrays[0].dtype, copy=False)

    return run


def recip(x: Array) -> Array:
    """1 / x in the dtype of `x`, without warnings about division by zero."""
    return div(np.ones((), x.dtype), x)
