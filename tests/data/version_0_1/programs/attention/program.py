"""graph: 4 kernels, estimated 44.1 us (at least 24.9)."""

from __future__ import annotations

import warnings

import numpy as np
import torch


def place(memory, offset, shape, dtype, strides=None):
    """An array in the workspace; strides in elements."""
    if strides is not None:
        strides = [s * np.dtype(dtype).itemsize for s in strides]
    return np.ndarray(shape, dtype, memory, offset, strides)


def tensor(x):
    """The same memory as a Torch tensor."""
    if not x.flags.writeable:  # Torch has no read-only tensors; nothing here writes to what it was given
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return tensor_of(x)
    return tensor_of(x)


def tensor_of(x):
    """The same memory as a Torch tensor; bfloat16 by way of its bits."""
    if min(x.strides, default=0) < 0:  # an axis of one element of what runs backwards: Torch wants no such stride
        x = np.lib.stride_tricks.as_strided(x, strides=[abs(s) for s in x.strides])
    if x.dtype.name == "bfloat16":
        return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(x)


def workspace(size, align=64):
    """Bytes that start at a multiple of `align`."""
    raw = np.empty(size + align, np.uint8)
    start = -raw.ctypes.data % align
    return raw[start:start + size]


def bind(weights):
    """Makes the program for given weights."""
    memory = workspace(65536)
    v2 = place(memory, 0, (1, 8, 32, 32), np.float32)
    v2_t = tensor(v2)
    w3 = np.full((1, 1, 1, 1), 0.25, np.float32)
    w3_t = tensor(w3)
    w4 = weights['w4']
    w4_t = tensor(w4)
    v5 = place(memory, 32768, (1, 8, 32, 32), np.float32)
    v5_t = tensor(v5)
    v2_t_8x32x32 = v2_t.view(8, 32, 32)

    @np.errstate(all="ignore")
    def run(a):
        """(a: float32[1, 8, 32, 16]) -> (output: float32[1, 8, 32, 16])"""
        a_t = tensor(a)
        v1 = a.transpose((0, 1, 3, 2))
        v1_t = tensor(v1)
        # matmul(x, w)
        torch.matmul(a_t, v1_t, out=v2_t)
        # x * y + z
        torch.addcmul(w4_t, w3_t, v2_t, out=v5_t)
        # softmax(x, axis=axis)
        torch.softmax(v5_t, 3, out=v2_t)
        # matmul(x, w)
        v7 = np.empty((1, 8, 32, 16), np.float32)
        v7_t = tensor(v7)
        torch.bmm(v2_t_8x32x32, a_t.view(8, 32, 16), out=v7_t.view(8, 32, 16))
        return v7,

    return run
