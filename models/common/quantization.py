"""Quantizes weight matrices [rows, K]: packed numbers, scales, and the expression of the dequantized matrix.

Encodings (`FORMS`): `int8` and `int4` (symmetric integers, one scale for each row and group along K), `fp8` (e4m3, one
scale a row), `mxfp4` (e2m1, a power of two as scale for 32 numbers). Two numbers of 4 bits share a byte, in units of up
to 16 bytes: the first half of a unit's numbers are low bits, the second half high bits
(`egraph/composites/quantized_ops.py`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar, cast

import numpy as np

from ...backends.runtime.cpu_tensors import is_torch, tensor_of
from ...egraph.builders.builders import full
from ...egraph.composites import quantized_ops as q
from ...egraph.ir.tensor import Tensor, make
from ...errors import UnsupportedError, UsageError
from .array_library import NumPyLibrary, TorchLibrary

Array = np.ndarray[Any, Any]

FORMS = ("int8", "int4", "fp8", "mxfp4")
GROUP, MX_GROUP = 128, 32  # numbers that share a scale
ENCODED = 1 << 18  # numbers that are encoded at once, so that intermediates stay in the processor's cache
ENCODED_ON_DEVICE = 1 << 24  # the same on a device, so that they take little of its memory
BLOCK = 16  # bytes of a unit of packed numbers: a vector register on most processors
FLOAT8_MAX = 448.0
Library = NumPyLibrary | TorchLibrary
NUMPY, TORCH = NumPyLibrary(), TorchLibrary()
LARGEST_CODE = {"int8": np.float32(127), "int4": np.float32(8), "fp8": np.float32(FLOAT8_MAX), "mxfp4": np.float32(6)}
#: Magnitudes of the float e2m1; the lower three bits of a code are the index.
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)


def check_form(form: str) -> str:
    """`form`, unchanged, if it is the name of an encoding (one of `FORMS`); raises UsageError for any other text."""
    if form not in FORMS:
        raise UsageError(f"quantize={form!r} is no encoding of quantized weights", hint=f"one of {', '.join(FORMS)}")
    return form


def group_of(form: str, size: int) -> int:
    """Group size of the encoding `form`: numbers along K (an axis of `size` numbers) that share a scale, the largest
    usual size that divides K, or all of K.

    Raises UnsupportedError for mxfp4 if `size` is not a multiple of 32.
    """
    if form == "fp8":
        return size
    groups = (MX_GROUP,) if form == "mxfp4" else (GROUP, GROUP // 2, GROUP // 4)
    found = next((g for g in groups if size % g == 0), size)
    if form == "mxfp4" and size % MX_GROUP:
        raise UnsupportedError(f"{size} inputs are no multiple of {MX_GROUP}, the group size of mxfp4")
    return found


def block_of(size: int, bits: int = 4) -> int:
    """Bytes of a unit in which `size` numbers of 2 or 4 bits are packed. Raises UnsupportedError if they do not fill
    bytes."""
    count = 8 // bits
    if size % count:
        raise UnsupportedError(f"{size} numbers of {bits} bits do not fill bytes")
    return next(n for n in (BLOCK, 8, 4, 2, 1) if size % (count * n) == 0)


A = TypeVar("A")


def packed(codes: A, axis: int = -1, bits: int = 4) -> A:
    """Pack codes of 2 or 4 bits (uint8, an array or tensor) along an axis, 8 / bits a byte, in units of `block_of`
    bytes; uint8."""
    return cast("A", _packed(codes, axis, bits))


def _packed(codes: Any, axis: int, bits: int) -> Any:
    axis, count = axis % codes.ndim, 8 // bits
    block = block_of(codes.shape[axis], bits)
    units = codes.reshape(*codes.shape[:axis], -1, count, block, *codes.shape[axis + 1 :])
    before = (slice(None),) * (axis + 1)
    shape = (*codes.shape[:axis], codes.shape[axis] // count, *codes.shape[axis + 1 :])
    found = units[(*before, 0)]
    for part in range(1, count):
        found = found | units[(*before, part)] << bits * part
    return found.reshape(shape)


def encoded(weight: Array, form: str, dtype: str, wanted: Sequence[str] = ("q", "scale")) -> dict[str, Array]:
    """Encode a weight matrix [rows, K] in `form`; returns {"q": codes, "scale": scales [rows, groups] of `dtype`}, or
    only the `wanted` parts.

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


def encoded_on(
    weight: Array, form: str, dtype: str, by_rows: bool, device: str, wanted: Sequence[str] = ("q", "scale")
) -> dict[str, Any]:  # fmt: skip
    """Encode a weight matrix on a Torch device; takes the same `form`, `dtype` and `wanted` as `encoded`, and returns
    tensors there with the names and the bits of its arrays.

    `by_rows`: whether the weight is [rows, K], else [K, rows]. At most `ENCODED_ON_DEVICE` numbers are encoded at once,
    so that intermediates need little memory. Raises torch.OutOfMemoryError if they do not fit.
    """
    import torch

    whole = weight if by_rows else tensor_of(weight).to(device).T
    rows, size = whole.shape
    count = max(1, ENCODED_ON_DEVICE // max(1, size))
    near: Callable[[Any], Any] = lambda x: x if is_torch(x) else tensor_of(x).to(device)
    blocks = (whole[i : i + count] for i in range(0, max(1, rows), count))
    with torch.no_grad():
        parts = [_encoded_rows(near(block), form, dtype, wanted, TORCH) for block in blocks]
        return {n: parts[0][n] if len(parts) == 1 else torch.cat([p[n] for p in parts]) for n in wanted}


def _encoded_rows(
    weight: Any, form: str, dtype: str, wanted: Sequence[str], lib: Library = NUMPY
) -> dict[str, Any]:  # fmt: skip
    """`encoded` of some rows, an array or tensor of the library."""
    rows, size = weight.shape
    groups = lib.contiguous(lib.cast(weight, "float32")).reshape(rows, -1, group_of(form, size))
    if not bool(lib.names.isfinite(groups).all()):
        raise UsageError("a weight that is not finite cannot be quantized")
    scale = _without_overflow(lib.cast(_scales(groups, form, lib), dtype), form, dtype, lib)
    found = {"scale": scale.reshape(rows, -1)}
    if "q" in wanted:
        wide = lib.cast(scale, "float32")
        ratio = groups / lib.names.where(wide != 0, wide, lib.constant(np.inf, wide))
        found["q"] = _codes(ratio.reshape(rows, size), form, lib)
    return found


def _scales(groups: Any, form: str, lib: Library) -> Any:
    """Scales [rows, groups, 1] in float32."""
    size = abs(groups)
    at = size.argmax(-1)[..., None]
    if form == "int4":  # the number of largest magnitude becomes -8
        return lib.taken(groups, at) / lib.constant(-8, groups)
    largest = lib.taken(size, at)
    if form == "mxfp4":  # 2**(exponent - 3) by its bits
        _, exponent = lib.names.frexp(largest)
        power = lib.of_bits((exponent - 3).clip(-126, 127) + 127 << 23, "float32")
        return lib.names.where(largest > 0, power, lib.constant(0, groups))
    return largest / lib.constant(127 if form == "int8" else FLOAT8_MAX, groups)


def _without_overflow(scale: Any, form: str, dtype: str, lib: Library) -> Any:
    """Scales, each replaced by the next smaller number if the largest code times the scale is infinite."""
    with np.errstate(over="ignore"):
        top = lib.cast(scale, "float32") * lib.constant(LARGEST_CODE[form], scale)
        infinite = lib.names.isinf(lib.cast(top, dtype))
    words = lib.bits(scale)
    return lib.of_bits(lib.names.where(infinite, words - 1, words), dtype)


def _codes(ratio: Any, form: str, lib: Library) -> Any:
    if form == "int8":
        return lib.cast(ratio.round().clip(-127, 127), "int8")
    if form == "int4":
        return packed(lib.cast(ratio.round().clip(-8, 7) + 8, "uint8"))
    if form == "fp8":
        return lib.float8(ratio.clip(-FLOAT8_MAX, FLOAT8_MAX))
    between = (E2M1[1:] + E2M1[:-1]) / 2  # ties go to the even code
    size = abs(ratio)
    code = lib.names.searchsorted(lib.constant(between, ratio), size)
    ties = lib.names.isin(size, lib.constant(between[1::2], ratio))
    return packed(lib.cast(code, "uint8") + lib.cast(ties, "uint8") + (lib.cast(ratio < 0, "uint8") << 3))


def dequantized(form: str, codes: Tensor, scale: Tensor) -> Tensor:
    """The expression of the matrix [rows, K] over codes and scales as `encoded` makes them for the encoding `form`."""
    zero = 8.0 if form == "int4" else 0.0
    return q.dequantize(numbers(form, codes), scale, full((1,) * codes.rank, zero, scale.dtype))


def numbers(form: str, codes: Tensor, axis: int = -1) -> Tensor:
    """The expression of codes of the encoding `form`, decoded but not scaled; 4-bit codes are packed along `axis`."""
    if form == "int8":
        return codes
    if form == "fp8":
        return make("from_float8", (codes,), {"dtype": "float32"})
    axis %= codes.rank
    size = codes.shape[axis]
    block = block_of(2 * size) if isinstance(size, int) else 1
    return q.unpack(codes, bits=4, form="unsigned" if form == "int4" else "e2m1", axis=axis, block=block)


__all__ = [
    "FORMS",
    "GROUP",
    "block_of",
    "check_form",
    "dequantized",
    "encoded",
    "encoded_on",
    "group_of",
    "numbers",
    "packed",
]
