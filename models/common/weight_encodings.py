"""Declares the encodings of quantized weights that `quantize=` names: one row of `WEIGHT_ENCODINGS` each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .array_library import NumPyLibrary, TorchLibrary

GROUP, MX_GROUP = 128, 32  # numbers that share a scale
FLOAT8_MAX = 448.0
#: Magnitudes of the float e2m1; the lower three bits of a code are the index.
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
Library = NumPyLibrary | TorchLibrary


@dataclass(frozen=True)
class WeightEncoding:
    """An encoding of weights [rows, K]: each group of numbers along K has codes and one scale.

    `bits` of a code; codes of 4 bits share a byte. `dtype` in which codes are stored. `largest`: magnitude of the
    number with the largest code. `scales(groups, library)`: float32 scales [rows, groups, 1] of float32 numbers [rows,
    groups, size]. `codes(ratio, library)`: codes, one an element, of numbers divided by their scales. `groups`: usual
    sizes of a group, the preferred one first; without any, a row is one group. `only_groups`: whether other sizes are
    refused; else a row that none of the sizes divides is one group. `decoded`: how kernels decode a code: "" (it is the
    number), "float8", or the `form` of the op `unpack`. `zero`: code of the number 0, less than which codes are
    negative.
    """

    bits: int
    dtype: str
    largest: float
    scales: Callable[[Any, Library], Any]
    codes: Callable[[Any, Library], Any]
    groups: tuple[int, ...] = (GROUP, GROUP // 2, GROUP // 4)
    only_groups: bool = False
    decoded: str = ""
    zero: float = 0.0


def _magnitudes(groups: Any, lib: Library) -> Any:
    """Largest magnitude of each group [rows, groups, 1]."""
    size = abs(groups)
    return lib.taken(size, size.argmax(-1)[..., None])


def _scaled_to(largest: float) -> Callable[[Any, Library], Any]:
    """Function to scales with which the number of largest magnitude has the code of the number ± `largest`."""
    return lambda groups, lib: _magnitudes(groups, lib) / lib.constant(largest, groups)


def _int4_scales(groups: Any, lib: Library) -> Any:
    """Scales with which the number of largest magnitude becomes -8: negative where that number is positive."""
    return lib.taken(groups, abs(groups).argmax(-1)[..., None]) / lib.constant(-8, groups)


def _powers_of_two(groups: Any, lib: Library) -> Any:
    """Scales 2**(exponent - 3), with the exponent (as `frexp` gives it) of the number of largest magnitude."""
    largest = _magnitudes(groups, lib)
    _, exponent = lib.names.frexp(largest)
    power = lib.of_bits((exponent - 3).clip(-126, 127) + 127 << 23, "float32")
    return lib.names.where(largest > 0, power, lib.constant(0, groups))


def _e2m1_codes(ratio: Any, lib: Library) -> Any:
    """Codes of the float e2m1: the nearest magnitude, of two equally near ones that with the even code; bit 3 is the
    sign."""
    between = (E2M1[1:] + E2M1[:-1]) / 2
    size = abs(ratio)
    code = lib.names.searchsorted(lib.constant(between, ratio), size)
    ties = lib.names.isin(size, lib.constant(between[1::2], ratio))
    return lib.cast(code, "uint8") + lib.cast(ties, "uint8") + (lib.cast(ratio < 0, "uint8") << 3)


WEIGHT_ENCODINGS: Mapping[str, WeightEncoding] = {
    "int8": WeightEncoding(
        8, "int8", 127.0, _scaled_to(127.0), lambda ratio, lib: lib.cast(ratio.round().clip(-127, 127), "int8")
    ),
    "int4": WeightEncoding(
        4, "uint8", 8.0, _int4_scales, lambda ratio, lib: lib.cast(ratio.round().clip(-8, 7) + 8, "uint8"),
        decoded="unsigned", zero=8.0,
    ),
    "fp8": WeightEncoding(
        8, "uint8", FLOAT8_MAX, _scaled_to(FLOAT8_MAX), lambda ratio, lib: lib.float8(ratio.clip(-FLOAT8_MAX, FLOAT8_MAX)),
        groups=(), decoded="float8",
    ),
    "mxfp4": WeightEncoding(
        4, "uint8", 6.0, _powers_of_two, _e2m1_codes, groups=(MX_GROUP,), only_groups=True, decoded="e2m1",
    ),
}  # fmt: skip

__all__ = ["E2M1", "FLOAT8_MAX", "GROUP", "MX_GROUP", "WEIGHT_ENCODINGS", "Library", "WeightEncoding"]
