"""Quantizes weight matrices [rows, K]: packed numbers, scales, and the expression of the dequantized matrix.

Encodings (weight_encodings.py): `int8` and `int4` (symmetric integers, one scale for each row and group along K), `fp8`
(e4m3, one scale a row), `mxfp4` (e2m1, a power of two as scale for 32 numbers). Two numbers of 4 bits share a byte, in
units of up to 16 bytes: the first half of a unit's numbers are low bits, the second half high bits
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
from .weight_encodings import WEIGHT_ENCODINGS, Library

Array = np.ndarray[Any, Any]

FORMS = tuple(WEIGHT_ENCODINGS)
ENCODED = 1 << 18  # numbers that are encoded at once, so that intermediates stay in the processor's cache
ENCODED_ON_DEVICE = 1 << 24  # the same on a device, so that they take little of its memory
BLOCK = 16  # bytes of a unit of packed numbers: a vector register on most processors
NUMPY, TORCH = NumPyLibrary(), TorchLibrary()


def check_form(form: str) -> str:
    """`form`, unchanged, if it is the name of an encoding (one of `FORMS`); raises UsageError for any other text."""
    if form not in FORMS:
        raise UsageError(f"quantize={form!r} is no encoding of quantized weights", hint=f"one of {', '.join(FORMS)}")
    return form


def group_of(form: str, size: int) -> int:
    """Group size of the encoding `form`: numbers along K (an axis of `size` numbers) that share a scale, the first of
    the encoding's sizes that divides K, or all of K.

    Raises UnsupportedError if the encoding refuses other group sizes than its own, and none of them divides `size`.
    """
    encoding = WEIGHT_ENCODINGS[form]
    found = next((g for g in encoding.groups if size % g == 0), None)
    if found is None and encoding.only_groups:
        raise UnsupportedError(f"{size} inputs are no multiple of {encoding.groups[-1]}, the group size of {form}")
    return size if found is None else found


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
    encoding, groups = WEIGHT_ENCODINGS[form], lib.contiguous(lib.cast(weight, "float32"))
    groups = groups.reshape(rows, -1, group_of(form, size))
    if not bool(lib.names.isfinite(groups).all()):
        raise UsageError("a weight that is not finite cannot be quantized")
    scale = _without_overflow(lib.cast(encoding.scales(groups, lib), dtype), encoding.largest, dtype, lib)
    found = {"scale": scale.reshape(rows, -1)}
    if "q" in wanted:
        wide = lib.cast(scale, "float32")
        ratio = groups / lib.names.where(wide != 0, wide, lib.constant(np.inf, wide))
        codes = encoding.codes(ratio.reshape(rows, size), lib)
        found["q"] = packed(codes) if encoding.bits == 4 else codes
    return found


def _without_overflow(scale: Any, largest: float, dtype: str, lib: Library) -> Any:
    """Scales, each replaced by the next smaller number if its product with the `largest` number of a code is
    infinite."""
    with np.errstate(over="ignore"):
        top = lib.cast(scale, "float32") * lib.constant(largest, scale)
        infinite = lib.names.isinf(lib.cast(top, dtype))
    words = lib.bits(scale)
    return lib.of_bits(lib.names.where(infinite, words - 1, words), dtype)


def dequantized(form: str, codes: Tensor, scale: Tensor) -> Tensor:
    """The expression of the matrix [rows, K] over codes and scales as `encoded` makes them for the encoding `form`."""
    zero = full((1,) * codes.rank, WEIGHT_ENCODINGS[form].zero, scale.dtype)
    return q.dequantize(numbers(form, codes), scale, zero)


def numbers(form: str, codes: Tensor, axis: int = -1) -> Tensor:
    """The expression of codes of the encoding `form`, decoded but not scaled; 4-bit codes are packed along `axis`."""
    decoded = WEIGHT_ENCODINGS[form].decoded
    if not decoded:
        return codes
    if decoded == "float8":
        return make("from_float8", (codes,), {"dtype": "float32"})
    axis %= codes.rank
    size = codes.shape[axis]
    block = block_of(2 * size) if isinstance(size, int) else 1
    return q.unpack(codes, bits=4, form=decoded, axis=axis, block=block)


__all__ = [
    "FORMS",
    "block_of",
    "check_form",
    "dequantized",
    "encoded",
    "encoded_on",
    "group_of",
    "numbers",
    "packed",
]
