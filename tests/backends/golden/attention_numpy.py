"""attention: 2 kernels, estimated 0.0 us (at least 0.0)."""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np

Array = np.ndarray


def attention(
    q: Array, k: Array, v: Array, mask: Any, scale: float, causal: bool, window: int, softcap: float, out: Array
) -> None:
    """softmax(scale * q @ k.T + mask) @ v; the scores are allocated. Halves by way of float32."""
    if q.dtype.itemsize == 2:
        q, k, v = q.astype(np.float32), k.astype(np.float32), v.astype(np.float32)
    scores = np.matmul(q, np.swapaxes(k, -1, -2))
    scores *= scale
    if softcap:
        scores *= 1 / softcap
        np.tanh(scores, out=scores)
        scores *= softcap
    if causal or window:
        rows, columns = scores.shape[-2:]
        ahead = np.arange(columns) - np.arange(rows)[:, None] - (columns - rows)
        hidden = (ahead > 0) & bool(causal)
        if window:
            hidden = hidden | (ahead <= -window)
        scores[..., hidden] = -inf
    if mask is not None:
        scores = scores + mask.astype(scores.dtype, copy=False)
    softmax(scores, -1, scores)
    np.copyto(out, np.matmul(scores, v), casting="unsafe")


def place(memory, offset, shape, dtype, strides=None):
    """An array in the workspace; strides in elements."""
    if strides is not None:
        strides = [s * np.dtype(dtype).itemsize for s in strides]
    return np.ndarray(shape, dtype, memory, offset, strides)


def softmax(x: Array, axis: int, out: Array) -> None:
    """exp(x - max) / sum along an axis; halves by way of float32."""
    if x.dtype.itemsize == 2:
        wide = x.astype(np.float32)
        softmax(wide, axis, wide)
        np.copyto(out, wide, casting="unsafe")
        return
    np.subtract(x, x.max(axis, keepdims=True), out=out)
    np.exp(out, out=out)
    np.divide(out, out.sum(axis, keepdims=True), out=out)


def workspace(size, align=64):
    """Bytes that start at a multiple of `align`."""
    raw = np.empty(size + align, np.uint8)
    start = -raw.ctypes.data % align
    return raw[start:start + size]


def bind(weights):
    """Makes the program for given weights."""
    memory = workspace(256)
    v3 = place(memory, 0, (1, 2, 4, 8), np.float32)
    v4 = v3.transpose((0, 2, 1, 3))

    @np.errstate(all="ignore")
    def run(q, k, v):
        """(q: float32[1, 2, 4, 8], k: float32[1, 2, 4, 8], v: float32[1, 2, 4, 8]) -> (output: float32[1, 4, 16])"""
        # attention: float32[1, 2, 4, 8]
        attention(q, k, v, None, 0.25, True, 0, 0.0, v3)
        # reshape: float32[1, 4, 16]
        v5 = np.empty((1, 4, 16), np.float32)
        np.copyto(v5.reshape((1, 4, 2, 8)), v4)
        return v5,

    return run
