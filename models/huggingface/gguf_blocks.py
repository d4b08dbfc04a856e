"""Unpacks quantized GGUF tensors into codes, scales and zero points.

A block holds 32 or 256 numbers: scale * number, or scale * number - minimum, where a group of 16 or 32 numbers shares
scale and minimum. Formats with 256 numbers keep scales of groups as integers of few bits beside one or two scales of
the block; both are multiplied in float32. A zero point is minimum / scale. Layouts of blocks: ggml's `ggml-common.h`,
and `dequantize_row_*` in `ggml-quants.c`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...egraph.composites.quantized_ops import dequantize
from ...egraph.ir.tensor import Tensor
from ...egraph.ir.weight_data import Data
from ...errors import UnsupportedError
from ..common.packed_weight import LazyPart, PackedWeight
from ..common.quantization import dequantized, numbers, packed
from ..files.gguf import StoredTensor

Array = np.ndarray[Any, Any]
#: The parts of blocks [rows, blocks, bytes] as numbers [rows, blocks, n].
Part = Callable[[Array], Array]


@dataclass(frozen=True)
class BlockFormat:
    """How the numbers of an encoding lie in its blocks.

    `codes`: the numbers [rows, blocks, numbers of a block], int8; or with `form` "int4" uint8 in 0..15, from which 8 is
    subtracted where there are no minima. `group`: numbers that share a scale. `scales`, `minima`: those of the groups
    [rows, blocks, groups of a block]; without minima (None) numbers are scale * code. `dtype`: of scales.
    """

    form: str
    codes: Part
    group: int
    scales: Part
    minima: Part | None = None
    dtype: str = "float32"


def packed_weight(stored: StoredTensor, rows: Callable[[Array], Array]) -> PackedWeight:
    """A quantized matrix as a packed weight; `rows` puts the rows [rows, ...] of its parts in order.

    Raises UnsupportedError for other numbers of axes than two.
    """
    if len(stored.shape) != 2:
        raise UnsupportedError(
            f"a quantized tensor of {len(stored.shape)} axes is not supported", where=str(stored.data.path)
        )
    kind, (n, k) = FORMATS[stored.encoding.name], stored.shape

    def part(shape: tuple[int, ...], dtype: str, compute: Part) -> LazyPart:
        blocks: Part = lambda raw: raw.reshape(raw.shape[0], -1, stored.encoding.nbytes)
        return LazyPart(shape, dtype, (stored.data,), lambda raw: rows(compute(blocks(raw))))

    groups = (n, k // kind.group)
    parts: dict[str, Data] = {
        "q": part(
            (n, k // 2) if kind.form == "int4" else (n, k), "uint8" if kind.form == "int4" else "int8", _code_part(kind)
        ),
        "scale": part(groups, kind.dtype, kind.scales if kind.minima is None else lambda b: _factors(kind, b)[0]),
    }
    build: Callable[[Mapping[str, Tensor]], Tensor] = lambda leaf: dequantized(kind.form, leaf["q"], leaf["scale"])
    if kind.minima is not None:
        parts["zero"] = part(groups, kind.dtype, lambda b: _factors(kind, b)[1])
        build = lambda leaf: dequantize(numbers(kind.form, leaf["q"]), leaf["scale"], leaf["zero"])
    return PackedWeight((n, k), kind.dtype, stored.encoding.name.lower(), parts, build)


def _code_part(kind: BlockFormat) -> Part:
    """The codes of rows, packed two a byte for 4 bits. Those of groups of scale 0 are 0."""

    def part(blocks: Array) -> Array:
        found = kind.codes(blocks)
        if kind.minima is not None:
            groups = found.reshape(*found.shape[:2], -1, kind.group)
            found = np.where((kind.scales(blocks) == 0)[..., None], found.dtype.type(0), groups)
        flat = found.reshape(len(blocks), -1)
        return packed(flat) if kind.form == "int4" else flat

    return part


def _factors(kind: BlockFormat, blocks: Array) -> tuple[Array, Array]:
    """(scales, zero points) of blocks with minima.

    A group of scale 0 equals its negated minimum: the code 0, the zero point 1 and the minimum as scale.
    """
    assert kind.minima is not None
    scale, least = kind.scales(blocks), kind.minima(blocks)
    return np.where(scale == 0, least, scale), np.divide(least, scale, out=np.ones_like(scale), where=scale != 0)


# ---------------------------------------------------------------- fields of blocks
def _float(start: int) -> Part:
    """The float16 number at a byte of each block, as float32 [rows, blocks, 1]."""

    def part(blocks: Array) -> Array:
        found: Array = np.ascontiguousarray(blocks[..., start : start + 2]).view(np.float16).astype(np.float32)
        return found

    return part


def _negated(part: Part) -> Part:
    return lambda blocks: -part(blocks)


def _nibbles(start: int, size: int) -> Part:
    """Codes of 4 bits in units of `size` bytes from byte `start` to the end: the low bits of a unit before its high
    ones, [rows, blocks, numbers] uint8."""

    def part(blocks: Array) -> Array:
        units = blocks[..., start:].reshape(*blocks.shape[:2], -1, 1, size)
        return np.concatenate([units & 15, units >> 4], -2).reshape(*blocks.shape[:2], -1)

    return part


def _fifth_bits(start: int) -> Part:
    """One bit a number, 32 of them from byte `start` on, as 16 or 0, [rows, blocks, 32] uint8."""

    def part(blocks: Array) -> Array:
        bits: Array = np.unpackbits(blocks[..., start : start + 4], axis=-1, bitorder="little") << 4
        return bits

    return part


def _five_bits(high: Part, low: Part, zero: int) -> Part:
    """Codes of 4 low bits and a fifth one, less `zero`; int8."""
    return lambda blocks: (high(blocks) | low(blocks)).astype(np.int8) - np.int8(zero)


def _pairs_of_bits(start: int) -> Part:
    """256 numbers of 2 bits in 64 bytes from byte `start` on: of 32 bytes first the lowest bits, [rows, blocks, 256]
    uint8."""
    shifts = np.array([0, 2, 4, 6], np.uint8)[:, None]

    def part(blocks: Array) -> Array:
        units = blocks[..., start : start + 64].reshape(*blocks.shape[:2], 2, 1, 32)
        found: Array = (units >> shifts & 3).reshape(*blocks.shape[:2], -1)
        return found

    return part


def _bits(start: int) -> Part:
    """256 numbers of one bit in 32 bytes from byte `start` on: first the lowest bit of each byte."""
    shifts = np.arange(8, dtype=np.uint8)[:, None]

    def part(blocks: Array) -> Array:
        found: Array = (blocks[..., None, start : start + 32] >> shifts & 1).reshape(*blocks.shape[:2], -1)
        return found

    return part


# ---------------------------------------------------------------- formats with 256 numbers a block
def _six_bit_factors(blocks: Array) -> tuple[Array, Array]:
    """8 scales and 8 minima of 6 bits in 12 bytes after two float16 numbers, [rows, blocks, 8] (Q4_K, Q5_K)."""
    s = blocks[..., 4:16]
    first, second, third = s[..., :4], s[..., 4:8], s[..., 8:]
    scale = np.concatenate([first & 63, third & 15 | first >> 6 << 4], -1)
    return scale, np.concatenate([second & 63, third >> 4 | second >> 6 << 4], -1)


def _q6_codes(blocks: Array) -> Array:
    """128 bytes of the lower 4 bits, 64 bytes of the upper 2; from -32 on."""
    low, high = _nibbles(0, 64)(blocks[..., :128]), _pairs_of_bits(128)(blocks)
    return np.asarray(low | high << 4).astype(np.int8) - np.int8(32)


def _q6_scales(blocks: Array) -> Array:
    scales: Array = np.ascontiguousarray(blocks[..., 192:208]).view(np.int8).astype(np.float32)
    return np.asarray(scales * _float(208)(blocks))


def _q5_codes(blocks: Array) -> Array:
    """32 bytes of fifth bits, 128 bytes of the lower 4."""
    return np.asarray(_nibbles(48, 32)(blocks) | _bits(16)(blocks) << 4).astype(np.int8)


def _q3_codes(blocks: Array) -> Array:
    """32 bytes of third bits, 64 bytes of the lower 2; from -4 on, kept as codes of 4 bits from -8 on."""
    return np.asarray((_pairs_of_bits(32)(blocks) | _bits(0)(blocks) << 2) + np.uint8(4))


def _q3_scales(blocks: Array) -> Array:
    """16 scales of 6 bits in 12 bytes: the lower 4 bits of two in each of 8 bytes, the upper 2 of four in each of 4."""
    low = blocks[..., None, 96:104] >> np.array([0, 4], np.uint8)[:, None] & 15
    high = blocks[..., None, 104:108] >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3
    shape = (*blocks.shape[:2], 16)
    whole = low.reshape(shape) | high.reshape(shape) << 4
    return np.asarray((whole.astype(np.float32) - 32) * _float(108)(blocks))


def _from_table(codes: Part, table: Sequence[int]) -> Part:
    """Numbers that a table gives for codes, int8."""
    values = np.array(table, np.int8)
    return lambda blocks: values[codes(blocks)]


def _iq4_scales(blocks: Array) -> Array:
    """8 scales of 6 bits from byte 2 on: the upper two bits of all in 2 bytes, the lower 4 of two in each of 4."""
    low = (blocks[..., 4:8, None] >> np.array([0, 4], np.uint8) & 15).reshape(*blocks.shape[:2], 8)
    high = (blocks[..., 2:4, None] >> np.array([0, 2, 4, 6], np.uint8) & 3).reshape(*blocks.shape[:2], 8)
    return np.asarray(((low | high << 4).astype(np.float32) - 32) * _float(0)(blocks))


def _half_power_of_two(blocks: Array) -> Array:
    """Half of the power of two whose exponent, plus 127, is the first byte: its numbers are stored doubled."""
    return np.asarray(np.ldexp(np.float32(1), blocks[..., :1].astype(np.int32) - 128))


#: Numbers of codes of 4 bits: those of IQ4_NL and IQ4_XS, and doubled those of the float e2m1.
_IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_E2M1 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
#: Name of an encoding -> how its blocks are read.
FORMATS: Mapping[str, BlockFormat] = {
    "Q8_0": BlockFormat("int8", lambda b: np.ascontiguousarray(b[..., 2:]).view(np.int8), 32, _float(0), dtype="float16"),
    "Q4_0": BlockFormat("int4", _nibbles(2, 16), 32, _float(0), dtype="float16"),
    "Q4_1": BlockFormat("int4", _nibbles(4, 16), 32, _float(0), _negated(_float(2))),
    "Q5_0": BlockFormat("int8", _five_bits(_fifth_bits(2), _nibbles(6, 16), 16), 32, _float(0), dtype="float16"),
    "Q5_1": BlockFormat("int8", _five_bits(_fifth_bits(4), _nibbles(8, 16), 0), 32, _float(0), _negated(_float(2))),
    "Q2_K": BlockFormat(
        "int4", _pairs_of_bits(16), 16, lambda b: (b[..., :16] & 15) * _float(80)(b), lambda b: (b[..., :16] >> 4) * _float(82)(b)
    ),
    "Q3_K": BlockFormat("int4", _q3_codes, 16, _q3_scales),
    "Q4_K": BlockFormat(
        "int4", _nibbles(16, 32), 32, lambda b: _six_bit_factors(b)[0] * _float(0)(b), lambda b: _six_bit_factors(b)[1] * _float(2)(b)
    ),
    "Q5_K": BlockFormat(
        "int8", _q5_codes, 32, lambda b: _six_bit_factors(b)[0] * _float(0)(b), lambda b: _six_bit_factors(b)[1] * _float(2)(b)
    ),
    "Q6_K": BlockFormat("int8", _q6_codes, 16, _q6_scales),
    "IQ4_NL": BlockFormat("int8", _from_table(_nibbles(2, 16), _IQ4), 32, _float(0), dtype="float16"),
    "IQ4_XS": BlockFormat("int8", _from_table(_nibbles(8, 16), _IQ4), 32, _iq4_scales),
    "MXFP4": BlockFormat("int8", _from_table(_nibbles(1, 16), _E2M1), 32, _half_power_of_two),
}  # fmt: skip

__all__ = ["FORMATS", "BlockFormat", "packed_weight"]
