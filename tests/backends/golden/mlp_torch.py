"""mlp: 4 kernels."""

from __future__ import annotations

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


def workspace(size, align=64):
    """A uint8 array of `size` bytes whose address is a multiple of `align`."""
    raw = np.empty(size + align, np.uint8)
    start = -raw.ctypes.data % align
    return raw[start:start + size]


TENSORS = True  # inputs may be tensors of the CPU, too
RESULTS = (0,)  # outputs whose memory a call may pass, after the inputs

def bind(weights):
    """Makes the program for given weights."""
    memory = workspace(128)
    dense_weight = weights['dense_weight']
    dense_weight_t = tensor(dense_weight)
    dense_bias = weights['dense_bias']
    dense_bias_t = tensor(dense_bias)
    v3 = place(memory, 0, (4, 8), np.float32)
    v3_t = tensor(v3)
    w5 = np.full((1, 1), 0.5, np.float32)
    w5_t = tensor(w5)

    def run(x, v7=None):
        """(x: float32[4, 8]) -> (output: float32[4, 8])"""
        x_t = tensor(x)
        # linear: float32[4, 8]
        torch.addmm(dense_bias_t, x_t, dense_weight_t, out=v3_t)
        # relu: float32[4, 8]
        torch.clamp_min(v3_t, 0, out=v3_t)
        # mul: float32[4, 8]
        torch.mul(v3_t, w5_t, out=v3_t)
        # softmax: float32[4, 8]
        v7 = np.empty((4, 8), np.float32) if v7 is None else v7
        v7_t = tensor(v7)
        torch.softmax(v3_t, 1, out=v7_t)
        return v7_t if x.__class__ is torch.Tensor else v7,

    return run
