"""Quantization of weight matrices [rows, K]: packed numbers, scales, and the expression of the dequantized matrix.

Forms: `int8` and `int4` (symmetric whole numbers, one scale for each row and group along K), `fp8` (e4m3, one scale a
row), `mxfp4` (e2m1, a power of two for 32 numbers). Two numbers of 4 bits share a byte, in units of up to 16 bytes: the
first half of a unit's numbers are low bits, the second half high bits (`egraph/ir/quantized_ops.py`).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from ...egraph.ir import dtypes
from ...egraph.ir import quantized_ops as q
from ...egraph.ir.builders import full, param
from ...egraph.ir.tensor import Tensor, make
from ...errors import UnsupportedError, UsageError

Array = np.ndarray[Any, Any]

FORMS = ("int8", "int4", "fp8", "mxfp4")
GROUP, MX_GROUP = 128, 32  # numbers that share a scale
ENCODED = 1 << 18  # numbers that are encoded at once, so that intermediates stay in the processor's cache
BLOCK = 16  # bytes of a unit of packed numbers: a vector register on most processors
FLOAT8_MAX = 448.0
LARGEST_CODE = {"int8": np.float32(127), "int4": np.float32(8), "fp8": np.float32(FLOAT8_MAX), "mxfp4": np.float32(6)}
#: Magnitudes of the float e2m1; the lower three bits of a code are the index.
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)


def check_form(form: str) -> str:
    """The form itself if it is one of `FORMS`; raises UsageError for any other text."""
    if form not in FORMS:
        raise UsageError(f"quantize={form!r} is no form of quantized weights", hint=f"one of {', '.join(FORMS)}")
    return form


def group_of(form: str, size: int) -> int:
    """Group size: numbers along K that share a scale, the largest usual size that divides K, or all of K.

    Raises UnsupportedError for mxfp4 if `size` is not a multiple of 32.
    """
    if form == "fp8":
        return size
    groups = (MX_GROUP,) if form == "mxfp4" else (GROUP, GROUP // 2, GROUP // 4)
    found = next((g for g in groups if size % g == 0), size)
    if form == "mxfp4" and size % MX_GROUP:
        raise UnsupportedError(f"{size} numbers are no multiple of {MX_GROUP}, as mxfp4 wants")
    return found


def block_of(size: int) -> int:
    """Bytes of a unit in which `size` numbers of 4 bits are packed. Raises UnsupportedError for an odd number."""
    if size % 2:
        raise UnsupportedError(f"{size} numbers of 4 bits do not fill bytes")
    return next(n for n in (BLOCK, 8, 4, 2, 1) if size % (2 * n) == 0)


def packed(codes: Array, axis: int = -1) -> Array:
    """Codes 0..15 (uint8) packed along an axis in units of `block_of` bytes; uint8, half as long."""
    axis %= codes.ndim
    block = block_of(codes.shape[axis])
    units = codes.reshape(*codes.shape[:axis], -1, 2, block, *codes.shape[axis + 1 :])
    low, high = np.moveaxis(units, axis + 1, 0)
    shape = (*codes.shape[:axis], codes.shape[axis] // 2, *codes.shape[axis + 1 :])
    return np.ascontiguousarray(low | high << 4).reshape(shape)


def encoded(weight: Array, form: str, dtype: str, wanted: Sequence[str] = ("q", "scale")) -> dict[str, Array]:
    """A weight matrix [rows, K] as {"q": codes, "scale": scales [rows, groups] of `dtype`}, or only the `wanted` parts.

    q: int8 [rows, K] (int8), uint8 [rows, K] (fp8) or uint8 [rows, K / 2] (int4, mxfp4). Blocks of rows are encoded in
    several threads. Raises UsageError for weights that are not finite.
    """
    count = max(1, ENCODED // max(1, weight.shape[1]))
    rows = [weight[i : i + count] for i in range(0, max(1, len(weight)), count)]
    if len(rows) == 1:
        return _encoded_rows(weight, form, dtype, wanted)
    with ThreadPoolExecutor(min(len(rows), os.cpu_count() or 1)) as threads:
        parts = list(threads.map(lambda block: _encoded_rows(block, form, dtype, wanted), rows))
    return {n: np.concatenate([p[n] for p in parts]) for n in wanted}


def _encoded_rows(weight: Array, form: str, dtype: str, wanted: Sequence[str]) -> dict[str, Array]:
    rows, size = weight.shape
    groups = np.asarray(weight, np.float32).reshape(rows, -1, group_of(form, size))
    if not np.isfinite(groups).all():
        raise UsageError("a weight that is not finite cannot be quantized")
    largest = np.abs(groups).max(-1, keepdims=True)
    scale = _without_overflow(_scales(groups, largest, form).astype(dtypes.numpy_dtype(dtype)), form)
    found = {"scale": scale.reshape(rows, -1)}
    if "q" in wanted:
        wide = scale.astype(np.float32)
        ratio = np.divide(groups, wide, out=np.zeros_like(groups), where=wide != 0)
        found["q"] = _codes(ratio.reshape(rows, size), form)
    return found


def _scales(groups: Array, largest: Array, form: str) -> Array:
    if form == "int4":  # the number of largest magnitude becomes -8
        at = np.abs(groups).argmax(-1)[..., None]
        return np.take_along_axis(groups, at, -1) / np.float32(-8)
    if form == "mxfp4":
        _, exponent = np.frexp(largest)
        return np.where(largest > 0, np.ldexp(np.float32(1), np.clip(exponent - 3, -126, 127)), np.float32(0))
    return np.asarray(largest / np.float32(127 if form == "int8" else FLOAT8_MAX))


def _without_overflow(scale: Array, form: str) -> Array:
    """Scales, each replaced by the next smaller number if the largest code times the scale is infinite."""
    with np.errstate(over="ignore"):
        infinite = np.isinf((scale.astype(np.float32) * LARGEST_CODE[form]).astype(scale.dtype))
    words = scale.view(f"u{scale.dtype.itemsize}")
    return np.asarray((words - infinite.astype(words.dtype)).view(scale.dtype))


def _codes(ratio: Array, form: str) -> Array:
    if form == "int8":
        return np.clip(np.rint(ratio), -127, 127).astype(np.int8)
    if form == "int4":
        return packed((np.clip(np.rint(ratio), -8, 7) + 8).astype(np.uint8))
    if form == "fp8":
        import ml_dtypes

        return np.clip(ratio, -FLOAT8_MAX, FLOAT8_MAX).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    between = (E2M1[1:] + E2M1[:-1]) / 2  # ties go to the even code
    size = np.abs(ratio)
    code = np.searchsorted(between, size, side="left") + np.isin(size, between[1::2])
    return packed((code + 8 * (ratio < 0)).astype(np.uint8))


def dequantized(form: str, codes: Tensor, scale: Tensor) -> Tensor:
    """The expression of the matrix [rows, K] over codes and scales as `encoded` makes them."""
    zero = 8.0 if form == "int4" else 0.0
    return q.dequantize(numbers(form, codes), scale, full((1,) * codes.rank, zero, scale.dtype))


def numbers(form: str, codes: Tensor, axis: int = -1) -> Tensor:
    """The expression of decoded codes before scaling; 4-bit codes are packed along `axis`."""
    if form == "int8":
        return codes
    if form == "fp8":
        return make("from_float8", (codes,), {"dtype": "float32"})
    axis %= codes.rank
    size = codes.shape[axis]
    block = block_of(2 * size) if isinstance(size, int) else 1
    return q.unpack(codes, bits=4, form="unsigned" if form == "int4" else "e2m1", axis=axis, block=block)


def weight_params(name: str, parts: dict[str, Any], form: str) -> Tensor:
    """The expression of a weight over the params `NAME.q` and `NAME.scale`, whose types are those of `parts`."""
    leaves = [param(f"{name}.{p}", parts[p].shape, dtypes.name_of(parts[p].dtype)) for p in ("q", "scale")]
    return dequantized(form, *leaves)


__all__ = [
    "FORMS",
    "GROUP",
    "block_of",
    "check_form",
    "dequantized",
    "encoded",
    "group_of",
    "numbers",
    "packed",
    "weight_params",
]
