"""attention: 2 kernels."""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np

Array = np.ndarray


def attention(
    q: Array, k: Array, v: Array, mask: Any, hidden: Any, scale: float, softcap: float, scores: Array, stat: Array,
    work: Array, out: Array,
) -> None:  # fmt: skip
    """Write softmax(scale * q @ k.T + mask) @ v in the dtype of the scores into `out`. `work` is out, or wider if out
    is 16-bit. `hidden`: mask of scores that do not count, or None. `scores`, `stat`: scratch memory for the scores, and
    for one value per row."""
    np.matmul(q, np.swapaxes(k, -1, -2), out=scores)
    np.multiply(scores, scale, out=scores)
    if softcap:
        np.multiply(scores, 1 / softcap, out=scores)
        np.tanh(scores, out=scores)
        np.multiply(scores, softcap, out=scores)
    if hidden is not None:
        np.copyto(scores, -inf, where=hidden)
    if mask is not None:
        np.add(scores, mask, out=scores)
    softmax(scores, -1, scores, stat, scores)
    np.matmul(scores, v, out=work)
    if work is not out:
        np.copyto(out, work, casting="unsafe")


def hidden_scores(rows: int, columns: int, causal: bool, window: int) -> Array:
    """Mask of the scores [rows, columns] of attention that do not count: keys ahead of the query with `causal`, and
    keys further back than the window (0: none).
    """
    ahead = np.arange(columns) - np.arange(rows)[:, None] - (columns - rows)
    hidden = (ahead > 0) & bool(causal)
    return hidden | (ahead <= -window) if window else hidden


def place(memory, offset, shape, dtype, strides=None):
    """An array at a byte offset of the workspace; row-major unless strides (in elements) are given."""
    if strides is not None:
        strides = [s * np.dtype(dtype).itemsize for s in strides]
    return np.ndarray(shape, dtype, memory, offset, strides)


def softmax(x: Array, axis: int, work: Array, stat: Array, out: Array) -> None:
    """Write exp(x - max) / sum along an axis into `out`. `work` is out, or wider if out is 16-bit; x may be out.
    `stat`: scratch memory for one value per row."""
    if work is not out:
        np.copyto(work, x)
        x = work
    np.maximum.reduce(x, axis=axis, keepdims=True, out=stat)
    np.subtract(x, stat, out=work)
    np.exp(work, out=work)
    np.add.reduce(work, axis=axis, keepdims=True, out=stat)
    np.divide(work, stat, out=work)
    if work is not out:
        np.copyto(out, work, casting="unsafe")


def workspace(size, align=64):
    """A uint8 array of `size` bytes whose address is a multiple of `align`."""
    raw = np.empty(size + align, np.uint8)
    start = -raw.ctypes.data % align
    return raw[start:start + size]


def bind(weights):
    """Makes the program for given weights."""
    memory = workspace(448)
    scratch = place(memory, 256, (192,), np.uint8)
    v3 = place(memory, 0, (1, 2, 4, 8), np.float32)
    hidden_scores_2 = hidden_scores(4, 4, True, 0)
    scratch_2 = place(scratch, 0, (1, 2, 4, 4), np.float32)
    scratch_3 = place(scratch, 128, (1, 2, 4, 1), np.float32)
    v4 = v3.transpose((0, 2, 1, 3))

    @np.errstate(all="ignore")
    def run(q, k, v):
        """(q: float32[1, 2, 4, 8], k: float32[1, 2, 4, 8], v: float32[1, 2, 4, 8]) -> (output: float32[1, 4, 16])"""
        # attention: float32[1, 2, 4, 8]
        attention(q, k, v, None, hidden_scores_2, 0.25, 0.0, scratch_2, scratch_3, v3, v3)
        # reshape: float32[1, 4, 16]
        v5 = np.empty((1, 4, 16), np.float32)
        np.copyto(v5.reshape((1, 4, 2, 8)), v4)
        return v5,

    return run
