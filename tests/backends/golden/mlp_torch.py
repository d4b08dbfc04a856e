"""mlp: 4 kernels."""

from __future__ import annotations

import numpy as np
import torch


class Place:
    """An array's memory for NumPy to look at anew, as if it could be written; keeps the array."""

    def __init__(self, array):
        self.array, seen = array, array.__array_interface__
        self.__array_interface__ = {**seen, "data": (seen["data"][0], False)}


def place(memory, offset, shape, dtype, strides=None):
    """An array in the workspace; strides in elements."""
    if strides is not None:
        strides = [s * np.dtype(dtype).itemsize for s in strides]
    return np.ndarray(shape, dtype, memory, offset, strides)


def tensor(x):
    """The same memory as a Torch tensor; a tensor is returned as it is."""
    if x.__class__ is not np.ndarray:
        return x
    if not x.flags.writeable:  # Torch has no read-only tensors, and warns; nothing here writes to what it was given
        x = np.asarray(Place(x)).view(x.dtype)
    try:
        return torch.from_numpy(x)
    except (TypeError, ValueError):  # bfloat16, an axis of one element of what runs backwards
        return tensor_of(x)


def tensor_of(x):
    """The same memory as a Torch tensor, where Torch takes no such array; bfloat16 by way of its bits."""
    if min(x.strides, default=0) < 0:
        x = np.lib.stride_tricks.as_strided(x, strides=[abs(s) for s in x.strides])
    if x.dtype.name == "bfloat16":
        return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(x)


def workspace(size, align=64):
    """Bytes that start at a multiple of `align`."""
    raw = np.empty(size + align, np.uint8)
    start = -raw.ctypes.data % align
    return raw[start:start + size]


TENSORS = True  # inputs may be tensors of the CPU, too
RESULTS = (0,)  # outputs whose memory calls may give, behind the inputs

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
