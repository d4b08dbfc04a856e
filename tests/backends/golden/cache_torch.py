"""cache: 3 kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


class Place:
    """A read-only array's memory, declared writable to NumPy; keeps the array alive."""

    def __init__(self, array):
        self.array, seen = array, array.__array_interface__
        self.__array_interface__ = {**seen, "data": (seen["data"][0], False)}


def place(memory, offset, shape, dtype, strides=None):
    """An array at a byte offset of the workspace; row-major unless strides (in elements) are given."""
    if strides is not None:
        strides = [s * np.dtype(dtype).itemsize for s in strides]
    return np.ndarray(shape, dtype, memory, offset, strides)


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


def updated(x: Any, index: Any, updates: Any, axis: int, mode: str, out: Any) -> None:
    """x with updates written at the index along one axis. x may be out. `mode`: "set", or how an update is combined
    with the element there: "add", "mul", "max", "min". Negative indices count from the end. Raises IndexError for
    indices beyond the axis.
    """
    size, index = x.shape[axis], index.long()
    if index.numel():
        low, high = (int(v) for v in index.aminmax())
        if low < -size or high >= size:
            raise IndexError(f"index {high if high >= size else low} is out of bounds for axis {axis} with size {size}")
        index = index if low >= 0 else index.remainder(size)
    if x.data_ptr() != out.data_ptr():
        out.copy_(x)
    if mode == "set":
        out.scatter_(axis, index, updates)
    elif mode == "add":
        out.scatter_add_(axis, index, updates)
    else:
        out.scatter_reduce_(axis, index, updates, {"mul": "prod", "max": "amax", "min": "amin"}[mode])


def workspace(size, align=64):
    """A uint8 array of `size` bytes whose address is a multiple of `align`."""
    raw = np.empty(size + align, np.uint8)
    start = -raw.ctypes.data % align
    return raw[start:start + size]


TENSORS = True  # inputs may be tensors of the CPU, too
RESULTS = (0,)  # outputs whose memory a call may pass, after the inputs

def bind(weights, states):
    """Makes the program for given weights and states, which run() updates."""
    memory = workspace(64)
    cache = states['cache']
    cache_t = tensor(cache)
    v4 = place(memory, 0, (1, 4), np.float32)
    v4_t = tensor(v4)

    def run(x, position, v5=None):
        """(x: float32[1, 4], position: int64[1, 4]) -> (output: float32[4])"""
        position_t = tensor(position)
        x_t = tensor(x)
        # scatter_elements: float32[6, 4]
        updated(cache_t, position_t, x_t, 0, 'set', cache_t)
        # sum: float32[1, 4]
        torch.sum(cache_t, (0,), True, out=v4_t)
        # reshape: float32[4]
        v5 = np.empty((4,), np.float32) if v5 is None else v5
        v5_t = tensor(v5)
        v5_t.view((1, 4)).copy_(v4_t)
        return v5_t if x.__class__ is torch.Tensor else v5,

    return run
