"""Helper functions of emitted NumPy programs for padding, sorting, gather and scatter, and rotary embeddings: see
numpy_helpers.py."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def pad(x: Array, axis: int, lo: int, value: float, out: Array) -> None:
    """Write x, padded with a constant along one axis, into `out`."""
    before: tuple[Any, ...] = (slice(None),) * axis
    stop = lo + x.shape[axis]
    out[(*before, slice(0, lo))] = value
    out[(*before, slice(stop, None))] = value
    out[(*before, slice(lo, stop))] = x


def pad2(x: Array, a: int, lo_a: int, b: int, lo_b: int, value: float, out: Array) -> None:
    """Write x into `out`, whose axes `a` and `b` are longer: `lo_a` and `lo_b` elements of `value` come before x, as
    many as remain after it."""
    out.fill(value)
    places = [slice(0, d) for d in x.shape]
    places[a], places[b] = slice(lo_a, lo_a + x.shape[a]), slice(lo_b, lo_b + x.shape[b])
    out[tuple(places)] = x


def argsort(x: Array, axis: int, descending: bool, out: Array) -> None:
    """Write the indices that sort x along an axis into `out`; stable."""
    if descending:  # stable descending: sort the reversed axis, then reverse positions and result
        order = np.argsort(np.flip(x, axis), axis=axis, kind="stable")
        np.subtract(x.shape[axis] - 1, np.flip(order, axis), out=out)
    else:
        np.copyto(out, np.argsort(x, axis=axis, kind="stable"))


def along(index: Array, axis: int) -> tuple[Any, ...]:
    """Subscript s of an array x such that x[s] is take_along_axis(x, index, axis), for reading and for writing."""
    places: list[Any] = list(np.ogrid[tuple(slice(n) for n in index.shape)])
    places[axis] = index
    return tuple(places)


def gather_elements(x: Array, index: Array, axis: int, out: Array) -> None:
    """Write elements of x at `index` along an axis (take_along_axis) into `out`; negative indices count from the end,
    others are clipped."""
    size, index = x.shape[axis], index.astype(np.int64, copy=False)  # a narrow dtype cannot hold the size
    np.copyto(out, x[along(np.clip(np.where(index < 0, index + size, index), 0, size - 1), axis)])


def scatter_elements(x: Array, index: Array, updates: Array, axis: int, mode: str, out: Array) -> None:
    """Write x with updates written at the index along one axis into `out`. x may be out. `mode`: "set", or how an
    update is combined with the element there: "add", "mul", "max", "min"."""
    if x.ctypes.data != out.ctypes.data:
        np.copyto(out, x)
    if mode == "set":
        out[along(index, axis)] = updates
    else:
        ufunc = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}[mode]
        ufunc.at(out, along(index, axis), updates)


def rope(x: Array, cos: Array, sin: Array, turned: Array, out: Array) -> None:
    """Write x * cos + rotate_half(x) * sin, over the last axis, into `out`."""
    half = x.shape[-1] // 2
    sin = np.broadcast_to(sin, (*sin.shape[:-1], x.shape[-1]))
    low, high = out[..., :half], out[..., half:]
    np.multiply(x, cos, out=out)
    np.multiply(x[..., half:], sin[..., :half], out=turned)
    np.subtract(low, turned, out=low)
    np.multiply(x[..., :half], sin[..., half:], out=turned)
    np.add(high, turned, out=high)
