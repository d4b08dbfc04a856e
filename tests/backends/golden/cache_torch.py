"""cache: 3 kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

Array = np.ndarray


class Place:
    """A read-only array's memory, declared writable to NumPy; keeps the array alive."""

    def __init__(self, array):
        self.array, seen = array, array.__array_interface__
        self.__array_interface__ = {**seen, "data": (seen["data"][0], False)}


def along(index: Array, axis: int) -> tuple[Any, ...]:
    """Subscript s of an array x such that x[s] is take_along_axis(x, index, axis), for reading and for writing."""
    places: list[Any] = list(np.ogrid[tuple(slice(n) for n in index.shape)])
    places[axis] = index
    return tuple(places)


def place(memory, offset, shape, dtype, strides=None):
    """An array at a byte offset of the workspace; row-major unless strides (in elements) are given."""
    if strides is not None:
        strides = [s * np.dtype(dtype).itemsize for s in strides]
    return np.ndarray(shape, dtype, memory, offset, strides)


def scatter_elements(x: Array, index: Array, updates: Array, axis: int, mode: str, out: Array) -> None:
    """x with updates written at the index along one axis. x may be out. `mode`: "set", or how an update is combined
    with the element there: "add", "mul", "max", "min".
    """
    if x.ctypes.data != out.ctypes.data:
        np.copyto(out, x)
    if mode == "set":
        out[along(index, axis)] = updates
    else:
        ufunc = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}[mode]
        ufunc.at(out, along(index, axis), updates)


def tensor(x):
    """A Torch tensor over an array's memory; a tensor is returned unchanged."""
    if x.__class__ is not np.ndarray:
        return x
    if not x.flags.writeable:  # Torch has no read-only tensors, and warns; no kernel writes to an input
        x = np.asarray(Place(x)).view(x.dtype)
    try:
        return torch.from_numpy(x)
    except (TypeError, ValueError):  # bfloat16, or a negative stride of an axis of one element
        return tensor_of(x)


def tensor_of(x):
    """A Torch tensor over the memory of an array that torch.from_numpy refuses: bfloat16 (through its bits), negative strides."""
    if min(x.strides, default=0) < 0:
        x = np.lib.stride_tricks.as_strided(x, strides=[abs(s) for s in x.strides])
    if x.dtype.name == "bfloat16":
        return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(x)


def workspace(size, align=64):
    """A uint8 array of `size` bytes whose address is a multiple of `align`."""
    raw = np.empty(size + align, np.uint8)
    start = -raw.ctypes.data % align
    return raw[start:start + size]


def bind(weights, states):
    """Makes the program for given weights and states, which run() updates."""
    memory = workspace(64)
    cache = states['cache']
    v3_t = tensor(cache)
    v4 = place(memory, 0, (1, 4), np.float32)
    v4_t = tensor(v4)

    @np.errstate(all="ignore")
    def run(x, position):
        """(x: float32[1, 4], position: int64[1, 4]) -> (output: float32[4])"""
        # scatter_elements: float32[6, 4]
        scatter_elements(cache, position, x, 0, 'set', cache)
        # sum: float32[1, 4]
        torch.sum(v3_t, (0,), True, out=v4_t)
        # reshape: float32[4]
        v5 = np.empty((4,), np.float32)
        v5_t = tensor(v5)
        v5_t.view((1, 4)).copy_(v4_t)
        return v5,

    return run
