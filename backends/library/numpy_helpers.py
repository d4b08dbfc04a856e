"""Helper functions of emitted NumPy programs.

Their source is copied into emitted programs: each may use only `np`, `inf` and other helpers, those of this module and
of numpy_window_helpers.py.
"""

from __future__ import annotations

import inspect
from math import inf
from typing import Any

import numpy as np

from ...egraph.ir import recurrence
from ...egraph.ir import special_functions as special
from . import numpy_window_helpers

Array = np.ndarray[Any, Any]


def erf_chunk(x: Array, out: Array) -> None:
    """erf of a float32 or float64 vector; relative error 4e-7 and 1e-15. x may be out."""
    if x.dtype == np.float64:
        near = (
            -3.80659122412214e-13,
            9.21125018742823e-12,
            -2.035231956483527e-10,
            4.115751500265885e-09,
            -7.51156925108609e-08,
            1.2233827638093572e-06,
            -1.75371694412802e-05,
            0.00021751715603563488,
            -0.0022854855611440855,
            0.019852496688984218,
            -0.1405360890227171,
            0.9654687386698673,
        )
        far = (
            -1.4495643113419578e-13,
            -9.321424201169892e-13,
            1.3919347826387398e-13,
            2.2116745307548472e-11,
            7.360635504868664e-11,
            -2.6866737279095447e-10,
            -2.6240024103160866e-09,
            -5.886316438866986e-10,
            7.005318546704507e-08,
            1.6349938614647468e-07,
            -1.9795618158539775e-06,
            -7.340517941415228e-06,
            8.079220426243645e-05,
            0.0001971391777283487,
            -0.005588816281839573,
            0.038560570425182406,
            -0.16189356804102498,
            0.2214295402299318,
        )
        size = np.clip(np.abs(x), 0, 6)
        low = np.polyval(near, 2 * size * size - 1) * size
        high = 1 - np.exp(-size * size) * np.polyval(far, (12 * (size - 2) / (size + 2) - 1) / 5)
        np.copysign(np.where(size < 1, low, high), x, out=out)
        return
    top = (
        2.0511504742111853e-06,
        0.00028484763934331697,
        0.0037624666485652587,
        0.05273908514429405,
        0.19032825569116135,
        1.1283791467246156,
    )
    bottom = (
        3.810091122153586e-05,
        0.0011618391539215884,
        0.014962865350703364,
        0.11407742756556334,
        0.5020067758190996,
        1.0,
    )
    np.clip(x, np.float32(-3.9192), np.float32(3.9192), out=out)
    z = out * out
    p, q = z * np.float32(top[0]), z * np.float32(bottom[0])
    for a, b in zip(top[1:-1], bottom[1:-1]):
        p += np.float32(a)
        p *= z
        q += np.float32(b)
        q *= z
    p += np.float32(top[-1])
    q += np.float32(bottom[-1])
    p /= q
    out *= p
    np.clip(out, np.float32(-1), np.float32(1), out=out)


def erf(x: Array, out: Array) -> None:
    """erf, in cache-sized chunks. x may be out."""
    if x.dtype.itemsize == 2:
        wide = x.astype(np.float32, order="C")
        erf(wide, wide)
        np.copyto(out, wide, casting="unsafe")
        return
    if out is not x:
        np.copyto(out, x)
    line = out.reshape(-1)
    for i in range(0, line.size, 16384):
        erf_chunk(line[i : i + 16384], line[i : i + 16384])


def gelu(x: Array, out: Array) -> None:
    """x * (1 + erf(x / sqrt 2)) / 2 of a contiguous array, in cache-sized chunks. x may be out."""
    if x.dtype.itemsize == 2:
        wide = x.astype(np.float32, order="C")
        gelu(wide, wide)
        np.copyto(out, wide, casting="unsafe")
        return
    source, target = x.reshape(-1), out.reshape(-1)
    for i in range(0, source.size, 16384):
        part = source[i : i + 16384]
        half = part * part.dtype.type(0.5**0.5)
        erf_chunk(half, half)
        half += 1
        half *= part
        np.multiply(half, 0.5, out=target[i : i + 16384])


def gelu_tanh(x: Array, out: Array) -> None:
    """x * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x**3))) / 2."""
    np.multiply(x, x, out=out)
    np.multiply(out, 0.044715, out=out)
    np.add(out, 1, out=out)
    np.multiply(out, x, out=out)
    np.multiply(out, (2 / np.pi) ** 0.5, out=out)
    np.tanh(out, out=out)
    np.add(out, 1, out=out)
    np.multiply(out, x, out=out)
    np.multiply(out, 0.5, out=out)


def mish(x: Array, out: Array) -> None:
    """x * tanh(log(1 + exp(x)))."""
    if x.dtype.itemsize == 2:
        wide = x.astype(np.float32)
        np.copyto(out, wide * np.tanh(np.logaddexp(wide, 0)), casting="unsafe")
        return
    np.logaddexp(x, 0, out=out)
    np.tanh(out, out=out)
    np.multiply(x, out, out=out)


def elu(x: Array, alpha: float, positive: Array, out: Array) -> None:
    """x where positive, else alpha * (exp(x) - 1)."""
    np.minimum(x, 0, out=out)
    np.expm1(out, out=out)
    np.multiply(out, alpha, out=out)
    np.greater(x, 0, out=positive)
    np.copyto(out, x, where=positive)


def leaky_relu(x: Array, alpha: float, positive: Array, out: Array) -> None:
    """x where positive, else alpha * x."""
    np.multiply(x, alpha, out=out)
    np.greater(x, 0, out=positive)
    np.copyto(out, x, where=positive)


def clip(x: Array, lo: float, hi: float, out: Array) -> None:
    """x clamped to [lo, hi]; NaN stays NaN."""
    np.maximum(x, lo, out=out)
    np.minimum(out, hi, out=out)


def from_float8(x: Array, out: Array) -> None:
    """Values of the 8-bit floats e4m3fn whose bits are x."""
    codes = np.arange(256, dtype=np.int32)
    exponent, mantissa = codes >> 3 & 15, codes & 7
    values = np.where(exponent == 0, np.ldexp(mantissa, -9), np.ldexp(mantissa + 8.0, exponent - 10))
    values[127::128] = np.nan
    np.copyto(out, np.where(codes < 128, values, -values).astype(np.float32)[x], casting="unsafe")


def unpack(x: Array, bits: int, form: str, axis: int, block: int, out: Array) -> None:
    """Numbers of 2 or 4 bits in bytes x along an axis, in units of `block` bytes; `form`: "unsigned", "signed" or
    "e2m1"."""
    count = 8 // bits
    units = (*x.shape[:axis], x.shape[axis] // block, 1, block, *x.shape[axis + 1 :])
    shifts = (np.arange(count, dtype=np.uint8) * bits).reshape((count, 1) + (1,) * (x.ndim - axis - 1))
    codes = (x.reshape(units) >> shifts) & ((1 << bits) - 1)
    values = np.arange(1 << bits, dtype=np.float32)
    if form == "signed":
        values[1 << (bits - 1) :] -= 1 << bits
    elif form == "e2m1":
        values[:8] = 0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0
        values[8:] = -values[:8]
    np.copyto(out, values[codes].reshape(out.shape), casting="unsafe")


def dequantize(q: Array, s: Array, z: Array, out: Array) -> None:
    """(q - z) * s, each value of s and z repeated over its block of q."""
    units = [n for size, blocks in zip(q.shape, s.shape) for n in (blocks, size // max(blocks, 1))]
    spread = [n for blocks in s.shape for n in (blocks, 1)]
    zeros = z.reshape(spread if z.shape == s.shape else (1,) * len(spread))
    numbers = q.astype(s.dtype).reshape(units) - zeros.astype(s.dtype)
    np.copyto(out, (numbers * s.reshape(spread)).reshape(q.shape), casting="unsafe")


def softmax(x: Array, axis: int, work: Array, stat: Array, out: Array) -> None:
    """exp(x - max) / sum along an axis. `work` is out, or wider if out is 16-bit; x may be out. `stat`: scratch memory
    for one value per row."""
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


def power(x: Array, y: Array, exponents: Array, out: Array) -> None:
    """x ** y with elementwise exponents: NumPy computes broadcast exponents by squares, roots and quotients."""
    np.copyto(exponents, y)
    np.power(np.atleast_1d(x), np.atleast_1d(exponents), out=np.atleast_1d(out))


def log_softmax(x: Array, axis: int, work: Array, powers: Array, stat: Array, out: Array) -> None:
    """x - log(sum(exp(x))) along an axis, shifted by the maximum. `work` is out, or wider if out is 16-bit.
    `powers`, `stat`: scratch memory of x's shape, and for one value per row."""
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
    """log(sum(exp(x))) over axes, shifted by the largest finite value. `work` is out, or wider if out is 16-bit."""
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
    """(x - mean) / sqrt(var + eps) over the last axis, of float32 or float64. x may be out. `stat`: scratch
    memory for one value per row."""
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
    """(x - mean) / sqrt(var + eps) * gain + shift over the last axis. `work` is out, or wider if out is 16-bit.
    `stat`: scratch memory for one value per row."""
    if work is not out:
        np.copyto(work, x)
        x = work
    normalised(x, eps, stat, work)
    np.multiply(work, gain, out=work)
    np.add(work, shift, out=work)
    if work is not out:
        np.copyto(out, work, casting="unsafe")


def rms_norm(x: Array, gain: Array, eps: float, work: Array, stat: Array, out: Array) -> None:
    """x / sqrt(mean(x**2) + eps) * gain over the last axis. `work` is out, or wider if out is 16-bit.
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
    """(x - mean) / sqrt(var + eps) * gain + shift per channel."""
    scale = gain / np.sqrt(var + var.dtype.type(eps))
    np.multiply(x, channels(scale, x.ndim), out=out)
    np.add(out, channels(shift - mean * scale, x.ndim), out=out)


def group_norm(
    x: Array, gain: Array, shift: Array, groups: int, eps: float, work: Array, stat: Array, out: Array
) -> None:
    """Group norm: normalised over groups of channels and all positions, then scaled and shifted. `work` is out, or
    wider if out is 16-bit. `stat`: scratch memory for one value per group."""
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
    """-log_softmax(logits)[target], per row. The arrays after `target` are scratch memory of `log_softmax`, then
    out."""
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
    """softmax(scale * q @ k.T + mask) @ v in the dtype of the scores. `work` is out, or wider if out is 16-bit.
    `hidden`: mask of scores that do not count, or None. `scores`, `stat`: scratch memory for the scores, and for
    one value per row.
    """
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


def pad(x: Array, axis: int, lo: int, value: float, out: Array) -> None:
    """x padded with a constant along one axis."""
    before: tuple[Any, ...] = (slice(None),) * axis
    stop = lo + x.shape[axis]
    out[(*before, slice(0, lo))] = value
    out[(*before, slice(stop, None))] = value
    out[(*before, slice(lo, stop))] = x


def pad2(x: Array, a: int, lo_a: int, b: int, lo_b: int, value: float, out: Array) -> None:
    """x padded with a constant along two axes."""
    out.fill(value)
    places = [slice(0, d) for d in x.shape]
    places[a], places[b] = slice(lo_a, lo_a + x.shape[a]), slice(lo_b, lo_b + x.shape[b])
    out[tuple(places)] = x


def argsort(x: Array, axis: int, descending: bool, out: Array) -> None:
    """Indices that sort along an axis; stable."""
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
    """Elements of x at `index` along an axis (take_along_axis); negative indices count from the end, others are
    clipped."""
    size, index = x.shape[axis], index.astype(np.int64, copy=False)  # a narrow dtype cannot hold the size
    np.copyto(out, x[along(np.clip(np.where(index < 0, index + size, index), 0, size - 1), axis)])


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


def rope(x: Array, cos: Array, sin: Array, turned: Array, out: Array) -> None:
    """x * cos + rotate_half(x) * sin over the last axis."""
    half = x.shape[-1] // 2
    sin = np.broadcast_to(sin, (*sin.shape[:-1], x.shape[-1]))
    low, high = out[..., :half], out[..., half:]
    np.multiply(x, cos, out=out)
    np.multiply(x[..., half:], sin[..., :half], out=turned)
    np.subtract(low, turned, out=low)
    np.multiply(x[..., :half], sin[..., half:], out=turned)
    np.add(high, turned, out=high)


def _error_function() -> str:
    """Source of the interpreter's own erf with its tables, renamed to `defined_erf`."""
    tables = [f"{name} = {value!r}" for name, value in vars(special).items() if name[:1] == "_" and name[1:].isupper()]
    parts = [inspect.getsource(f).rstrip() for f in (special._ratio, special._range, special.erf)]
    return "\n\n\n".join(["\n".join(tables), *parts]).replace("def erf(", "def defined_erf(")


#: helper name -> source
HELPERS: dict[str, str] = {
    name: inspect.getsource(value).rstrip()
    for name, value in {**globals(), **vars(numpy_window_helpers)}.items()
    if inspect.isfunction(value) and value.__module__ in (__name__, numpy_window_helpers.__name__) and name[0] != "_"
} | {
    "defined_erf": _error_function(),
    **{f: inspect.getsource(getattr(recurrence, f)).rstrip() for f in ("scan", "recurrent")},
}
