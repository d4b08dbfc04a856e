"""Helper functions of emitted NumPy programs for softmax, norms, cross entropy and attention: see numpy_helpers.py."""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


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


def log_softmax(x: Array, axis: int, work: Array, powers: Array, stat: Array, out: Array) -> None:
    """Write x - log(sum(exp(x))) along an axis, shifted by the maximum, into `out`. `work` is out, or wider if out is
    16-bit. `powers`, `stat`: scratch memory of x's shape, and for one value per row."""
    if work is not out:
        np.copyto(work, x)
        x = work
    np.maximum.reduce(x, axis=axis, keepdims=True, out=stat)
    np.subtract(x, stat, out=work)
    np.exp(work, out=powers)
    np.add.reduce(powers, axis=axis, keepdims=True, out=stat)
    np.log(stat, out=stat)
    np.subtract(work, stat, out=work)
    if work is not out:
        np.copyto(out, work, casting="unsafe")


def logsumexp(
    x: Array, axes: tuple[int, ...], powers: Array, top: Array, infinite: Array, work: Array, out: Array
) -> None:
    """Write log(sum(exp(x))) over axes, shifted by the largest finite value, into `out`. `work` is out, or wider if out
    is 16-bit."""
    if work is not out:
        np.copyto(powers, x)
        x = powers
    np.maximum.reduce(x, axis=axes, keepdims=True, out=top)
    np.isinf(top, out=infinite)
    np.copyto(top, 0, where=infinite)
    np.subtract(x, top, out=powers)
    np.exp(powers, out=powers)
    np.add.reduce(powers, axis=axes, keepdims=True, out=work)
    np.log(work, out=work)
    np.add(work, top, out=work)
    if work is not out:
        np.copyto(out, work, casting="unsafe")


def normalised(x: Array, eps: float, stat: Array, out: Array) -> None:
    """Write (x - mean) / sqrt(var + eps) over the last axis, in float32 or float64, into `out`. x may be out. `stat`:
    scratch memory for one value per row."""
    count = x.shape[-1]
    np.add.reduce(x, axis=-1, keepdims=True, out=stat)
    np.divide(stat, x.dtype.type(count), out=stat)
    np.subtract(x, stat, out=out)
    np.einsum("...i,...i->...", out, out, out=stat[..., 0])
    np.divide(stat, count, out=stat)
    np.add(stat, eps, out=stat)
    np.sqrt(stat, out=stat)
    np.divide(out, stat, out=out)


def layer_norm(x: Array, gain: Array, shift: Array, eps: float, work: Array, stat: Array, out: Array) -> None:
    """Write (x - mean) / sqrt(var + eps) * gain + shift over the last axis into `out`. `work` is out, or wider if out
    is 16-bit. `stat`: scratch memory for one value per row."""
    if work is not out:
        np.copyto(work, x)
        x = work
    normalised(x, eps, stat, work)
    np.multiply(work, gain, out=work)
    np.add(work, shift, out=work)
    if work is not out:
        np.copyto(out, work, casting="unsafe")


def rms_norm(x: Array, gain: Array, eps: float, work: Array, stat: Array, out: Array) -> None:
    """Write x / sqrt(mean(x**2) + eps) * gain over the last axis into `out`. `work` is out, or wider if out is 16-bit.
    `stat`: scratch memory for one value per row."""
    if work is not out:
        np.copyto(work, x)
        x = work
    np.einsum("...i,...i->...", x, x, out=stat[..., 0])
    np.divide(stat, x.shape[-1], out=stat)
    np.add(stat, eps, out=stat)
    np.sqrt(stat, out=stat)
    np.divide(x, stat, out=work)
    np.multiply(work, gain, out=work)
    if work is not out:
        np.copyto(out, work, casting="unsafe")


def channels(value: Array, rank: int) -> Array:
    """A per-channel vector reshaped to broadcast with x[N, C, ...]."""
    return value.reshape(1, -1, *(1,) * (rank - 2))


def batch_norm(x: Array, gain: Array, shift: Array, mean: Array, var: Array, eps: float, out: Array) -> None:
    """Write (x - mean) / sqrt(var + eps) * gain + shift, per channel, into `out`."""
    scale = gain / np.sqrt(var + var.dtype.type(eps))
    np.multiply(x, channels(scale, x.ndim), out=out)
    np.add(out, channels(shift - mean * scale, x.ndim), out=out)


def group_norm(
    x: Array, gain: Array, shift: Array, groups: int, eps: float, work: Array, stat: Array, out: Array
) -> None:
    """Write the group norm of x, normalised over groups of channels and all positions, then scaled and shifted, into
    `out`. `work` is out, or wider if out is 16-bit. `stat`: scratch memory for one value per group."""
    np.copyto(work, x)
    flat = work.reshape(x.shape[0], groups, -1)
    normalised(flat, eps, stat, flat)
    np.multiply(work, channels(gain, x.ndim), out=work)
    np.add(work, channels(shift, x.ndim), out=work)
    if work is not out:
        np.copyto(out, work, casting="unsafe")


def cross_entropy(
    logits: Array, target: Array, logs: Array, work: Array, powers: Array, stat: Array, out: Array
) -> None:
    """Write -log_softmax(logits)[target] per row into `out`. The arrays after `target` are scratch memory of
    `log_softmax`, then out."""
    log_softmax(logits, 1, work, powers, stat, logs)
    np.negative(logs[np.arange(len(target)), target], out=out)


def hidden_scores(rows: int, columns: int, causal: bool, window: int) -> Array:
    """Mask of the scores [rows, columns] of attention that do not count: keys ahead of the query with `causal`, and
    keys further back than the window (0: none).
    """
    ahead = np.arange(columns) - np.arange(rows)[:, None] - (columns - rows)
    hidden = (ahead > 0) & bool(causal)
    return hidden | (ahead <= -window) if window else hidden


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
