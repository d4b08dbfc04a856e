"""Softmax: 4 kernels, estimated 95.0 us (at least 95.0)."""

from __future__ import annotations

import ml_dtypes
import numpy as np

Array = np.ndarray


class SizeError(ValueError):
    """The program does not hold at these sizes."""


def arranged(buffers, align=64):
    """Offsets of (bytes, first step, last step) in one workspace, and its bytes: the largest first, each in the tightest gap
    between those that are in use at a common step."""
    sizes = [-(-b // align) * align for b, _, _ in buffers]
    offsets, placed, total = [0] * len(buffers), [], 0
    for i in sorted(range(len(buffers)), key=lambda i: (-sizes[i], buffers[i][1], i)):
        _, first, last = buffers[i]
        others = sorted((offsets[j], sizes[j]) for j in placed if buffers[j][1] <= last and buffers[j][2] >= first)
        end, best, least = 0, -1, -1
        for offset, taken in others:
            gap = offset - end
            if gap >= sizes[i] and (best < 0 or gap < least):
                best, least = end, gap
            end = max(end, offset + taken)
        offsets[i] = best if best >= 0 else end
        if sizes[i]:
            placed.append(i)
        total = max(total, offsets[i] + sizes[i])
    return offsets, total


def check_sizes(given, wanted, conditions):
    """SizeError for shapes that do not belong together, or sizes for which a condition does not hold."""
    if given != wanted:
        raise SizeError(f"shapes {given} do not belong together: {wanted} would")
    for text, holds in conditions:
        if not holds:
            raise SizeError(f"the program holds where {text}; the inputs' shapes are {given}")


def place(memory, offset, shape, dtype, strides=None):
    """An array in the workspace; strides in elements."""
    if strides is not None:
        strides = [s * np.dtype(dtype).itemsize for s in strides]
    return np.ndarray(shape, dtype, memory, offset, strides)


def room():
    """Gives the bytes of one workspace, which grows where more are asked for."""
    memory = workspace(0)

    def take(size):
        nonlocal memory
        if size > memory.size:
            memory = workspace(size + size // 4)
        return memory

    return take


def sized(at):
    """A function of arrays of any sizes. What a choice of sizes needs is made when it is first met; the last 16 are kept."""
    kept = {}

    def run(*inputs):
        shapes = tuple([x.shape for x in inputs])
        found = kept.get(shapes)
        if found is None:
            while len(kept) >= 16:
                del kept[next(iter(kept))]
            found = kept[shapes] = at(*shapes)
        return found(*inputs)

    return run


def softmax(x: Array, axis: int, work: Array, stat: Array, out: Array) -> None:
    """exp(x - max) / sum along an axis. `work` is out, or a wider array where out is half; x may be out."""
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
    """Bytes that start at a multiple of `align`."""
    raw = np.empty(size + align, np.uint8)
    start = -raw.ctypes.data % align
    return raw[start:start + size]


def bind(weights):
    """Makes the program for given weights; it runs at every size."""
    take = room()
    w2 = np.full((1, 1), 0.125, np.float32)

    def at(x_shape):
        T = x_shape[1]
        check_sizes((x_shape, ), ((2048, T),), (('1 <= T <= 4096', 1 <= T <= 4096), ))
        offsets, size = arranged(((8192*T, 0, 2), (8192*T, 2, 3), (8192, 2, 2),))
        memory = take(size)
        v1 = place(memory, offsets[0], (2048, T), np.float32)
        scratch = place(memory, offsets[2], (8192,), np.uint8)
        v4 = place(memory, offsets[1], (2048, T), np.float32)
        scratch_2 = place(scratch, 0, (2048, 1), np.float32)

        @np.errstate(all="ignore")
        def run(x):
            """(x: bfloat16[2048, T]) -> (output: bfloat16[2048, T])"""
            # cast(x, dtype=dtype)
            np.copyto(v1, x, casting='unsafe')
            # mul(x, y)
            np.multiply(v1, w2, out=v1)
            # softmax(x, axis=axis)
            softmax(v1, 1, v4, scratch_2, v4)
            # cast(x, dtype=dtype)
            v5 = np.empty((2048, T), ml_dtypes.bfloat16)
            np.copyto(v5, v4, casting='unsafe')
            return v5,

        return run

    return sized(at)
