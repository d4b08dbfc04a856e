"""Helper functions of emitted NumPy programs for elementwise ops, and for the decoding of 8-bit floats and quantized
weights: see numpy_helpers.py."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def erf_chunk(x: Array, out: Array) -> None:
    """Write erf of x, a float32 or float64 vector, into `out`; relative error 4e-7 and 1e-15. x may be out."""
    if x.dtype == np.float64:
        near = (
            -3.80659122412214e-13, 9.21125018742823e-12, -2.035231956483527e-10, 4.115751500265885e-09,
            -7.51156925108609e-08, 1.2233827638093572e-06, -1.75371694412802e-05, 0.00021751715603563488,
            -0.0022854855611440855, 0.019852496688984218, -0.1405360890227171, 0.9654687386698673,
        )  # fmt: skip
        far = (
            -1.4495643113419578e-13, -9.321424201169892e-13, 1.3919347826387398e-13, 2.2116745307548472e-11,
            7.360635504868664e-11, -2.6866737279095447e-10, -2.6240024103160866e-09, -5.886316438866986e-10,
            7.005318546704507e-08, 1.6349938614647468e-07, -1.9795618158539775e-06, -7.340517941415228e-06,
            8.079220426243645e-05, 0.0001971391777283487, -0.005588816281839573, 0.038560570425182406,
            -0.16189356804102498, 0.2214295402299318,
        )  # fmt: skip
        size = np.clip(np.abs(x), 0, 6)
        low = np.polyval(near, 2 * size * size - 1) * size
        high = 1 - np.exp(-size * size) * np.polyval(far, (12 * (size - 2) / (size + 2) - 1) / 5)
        np.copysign(np.where(size < 1, low, high), x, out=out)
        return
    top = (
        2.0511504742111853e-06, 0.00028484763934331697, 0.0037624666485652587, 0.05273908514429405,
        0.19032825569116135, 1.1283791467246156,
    )  # fmt: skip
    bottom = (
        3.810091122153586e-05, 0.0011618391539215884, 0.014962865350703364, 0.11407742756556334,
        0.5020067758190996, 1.0,
    )  # fmt: skip
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
    """Write erf of x into `out`, in cache-sized chunks. x may be out."""
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
    """Write x * (1 + erf(x / sqrt 2)) / 2 of a contiguous array into `out`, in cache-sized chunks. x may be out."""
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
    """Write x * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x**3))) / 2 into `out`."""
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
    """Write x * tanh(log(1 + exp(x))) into `out`."""
    if x.dtype.itemsize == 2:
        wide = x.astype(np.float32)
        np.copyto(out, wide * np.tanh(np.logaddexp(wide, 0)), casting="unsafe")
        return
    np.logaddexp(x, 0, out=out)
    np.tanh(out, out=out)
    np.multiply(x, out, out=out)


def elu(x: Array, alpha: float, positive: Array, out: Array) -> None:
    """Write x where positive, else alpha * (exp(x) - 1), into `out`. `positive`: scratch memory for the condition."""
    np.minimum(x, 0, out=out)
    np.expm1(out, out=out)
    np.multiply(out, alpha, out=out)
    np.greater(x, 0, out=positive)
    np.copyto(out, x, where=positive)


def leaky_relu(x: Array, alpha: float, positive: Array, out: Array) -> None:
    """Write x where positive, else alpha * x, into `out`. `positive`: scratch memory for the condition."""
    np.multiply(x, alpha, out=out)
    np.greater(x, 0, out=positive)
    np.copyto(out, x, where=positive)


def clip(x: Array, lo: float, hi: float, out: Array) -> None:
    """Write x clamped to [lo, hi] into `out`; NaN stays NaN."""
    np.maximum(x, lo, out=out)
    np.minimum(out, hi, out=out)


def power(x: Array, y: Array, exponents: Array, out: Array) -> None:
    """Write x ** y into `out`, with y copied to `exponents` (scratch memory of the result's shape) first: NumPy
    computes broadcast exponents by squares, roots and quotients."""
    np.copyto(exponents, y)
    np.power(np.atleast_1d(x), np.atleast_1d(exponents), out=np.atleast_1d(out))


def from_float8(x: Array, out: Array) -> None:
    """Write the values of the 8-bit floats (e4m3fn) whose bits are x into `out`."""
    codes = np.arange(256, dtype=np.int32)
    exponent, mantissa = codes >> 3 & 15, codes & 7
    values = np.where(exponent == 0, np.ldexp(mantissa, -9), np.ldexp(mantissa + 8.0, exponent - 10))
    values[127::128] = np.nan
    np.copyto(out, np.where(codes < 128, values, -values).astype(np.float32)[x], casting="unsafe")


def unpack(x: Array, bits: int, form: str, axis: int, block: int, out: Array) -> None:
    """Write the numbers of 2 or 4 bits in the bytes x along an axis, in units of `block` bytes, into `out`; `form`:
    "unsigned", "signed" or "e2m1"."""
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
    """Write (q - z) * s into `out`, with each value of s and z repeated over its block of q."""
    units = [n for size, blocks in zip(q.shape, s.shape) for n in (blocks, size // max(blocks, 1))]
    spread = [n for blocks in s.shape for n in (blocks, 1)]
    zeros = z.reshape(spread if z.shape == s.shape else (1,) * len(spread))
    numbers = q.astype(s.dtype).reshape(units) - zeros.astype(s.dtype)
    np.copyto(out, (numbers * s.reshape(spread)).reshape(q.shape), casting="unsafe")


def quantize(x: Array, s: Array, z: Array, out: Array) -> None:
    """Write x / s, rounded to whole numbers (ties to even), plus z, clipped to the range of z's dtype, into `out`."""
    limits = np.iinfo(z.dtype)
    whole = np.round(x / s) + z.astype(x.dtype)
    np.copyto(out, np.minimum(np.maximum(whole, limits.min), limits.max), casting="unsafe")
