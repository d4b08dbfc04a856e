"""Parts of the readers of quantized checkpoints (quantized.py): the tensors of one weight, and weights of codes with
scales and zero points."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from ...egraph.builders.builders import transpose
from ...egraph.composites.quantized_ops import dequantize
from ...egraph.ir.tensor import Tensor
from ...egraph.ir.weight_data import Data, load_data
from ...egraph.types import dtypes
from ...errors import BadWeightsError, UnsupportedError
from ..common.packed_weight import LazyPart, PackedWeight
from ..common.quantization import dequantized, packed
from ..common.quantization import numbers as numbers_of
from .checkpoint import Config

Array = np.ndarray[Any, Any]


class UnroundedActivationsWarning(UserWarning):
    """Warning that activations keep their precision where the kernels that a checkpoint is for round them."""


@dataclass(frozen=True)
class WeightTensors:
    """The tensors of one quantized weight, which share a stem."""

    data: Mapping[str, Data]
    stem: str
    used: set[str]

    def get(self, ending: str, dtype: str, shape: tuple[int, ...] | None = None) -> Data:
        """A tensor of this stem.

        Raises BadWeightsError if it is missing, or of another dtype ("" for any float) or shape.
        """
        name = self.stem + ending
        found = self.data.get(name)
        if found is None:
            raise BadWeightsError(f"tensor {name!r} is missing")
        kind = dtypes.name_of(found.dtype)
        if (kind != dtype and dtype) or (not dtype and not dtypes.is_float(kind)):
            raise BadWeightsError(f"tensor {name!r} holds {kind}, not {dtype or 'floats'}")
        if shape is not None and tuple(found.shape) != shape:
            raise BadWeightsError(f"tensor {name!r} has shape {list(found.shape)}, not {list(shape)}")
        self.used.add(name)
        return found

    def rank(self, ending: str, rank: int) -> tuple[int, ...]:
        """The shape of a tensor with `rank` axes, all longer than 0. Raises BadWeightsError for another shape."""
        found = self.data.get(self.stem + ending)
        if found is None:
            raise BadWeightsError(f"tensor {self.stem + ending!r} is missing")
        if len(found.shape) != rank or 0 in found.shape:
            raise BadWeightsError(f"tensor {self.stem + ending!r} has shape {list(found.shape)}, not {rank} axes")
        return tuple(found.shape)

    def matrix(self, ending: str) -> tuple[int, int]:
        """The shape of a tensor with two axes, both longer than 0. Raises BadWeightsError for another shape."""
        rows, columns = self.rank(ending, 2)
        return rows, columns

    def left_out(self, *endings: str) -> None:
        """Mark tensors as used that may be there and change activations only, whose rounding is left out."""
        self.used.update(self.stem + ending for ending in endings if self.stem + ending in self.data)

    def only(self, ending: str, value: list[int]) -> None:
        """Mark a tensor as used that may be missing. Raises BadWeightsError if it holds other numbers than `value`."""
        name = self.stem + ending
        if name in self.data and set(load_data(self.data[name]).reshape(-1).tolist()) - set(value):
            raise BadWeightsError(f"tensor {name!r} holds other numbers than {value}")
        self.used.add(name)


Replace = Callable[[WeightTensors], tuple[str, Data]]


def unpacked(words: Array, bits: int, axis: int) -> Array:
    """The unsigned numbers of `bits` bits in int32 words, lowest bits first, along an axis; as uint8."""
    count = 32 // bits
    shifts = (np.arange(count, dtype=np.uint32) * bits).reshape(
        [-1 if a == axis + 1 else 1 for a in range(words.ndim + 1)]
    )
    wide = np.expand_dims(words.view(np.uint32), axis + 1) >> shifts & np.uint32((1 << bits) - 1)
    shape = [*words.shape]
    shape[axis] *= count
    return wide.astype(np.uint8).reshape(shape)


def transposed(weight: Data) -> Data:
    """A quantized weight [outputs, inputs] as [inputs, outputs]."""
    shape = weight.shape[::-1]
    if not isinstance(weight, PackedWeight):
        return LazyPart(shape, dtypes.name_of(weight.dtype), (weight,), np.transpose)
    build = weight.build
    return replace(weight, shape=shape, form=f"{weight.form}, transposed", build=lambda leaf: transpose(build(leaf)))


def known_bits(options: Config, name: str, *known: int) -> int:
    """The bits of a code: the integer field `name` of a checkpoint's quantization options. Raises UnsupportedError
    unless it is one of `known`."""
    found = options.size(name)
    if found not in known:
        raise UnsupportedError(f"{name}={found} is not supported", where=options.where, hint=f"known: {known}")
    return found


def require_groups(options: Config, stem: str, inputs: int, groups: int) -> None:
    """Raises BadWeightsError if a weight does not have the groups of inputs that `group_size` says: of equal size, -1
    for a single one."""
    size = options.fields.get("group_size")
    if type(size) is int and size > 0 and groups * size != inputs and (groups > 1 or size < inputs):
        raise BadWeightsError(f"{stem!r}: {groups} groups of {inputs} inputs do not have group_size={size}")
    if size == -1 and groups != 1:
        raise BadWeightsError(f"{stem!r}: {groups} groups of inputs, group_size=-1 is a single one")


def with_zeros(bits: int, leaf: Mapping[str, Tensor]) -> Tensor:
    """The matrix [outputs, inputs] of unsigned numbers with zero points."""
    numbers = numbers_of("int4", leaf["q"]) if bits == 4 else leaf["q"]
    return dequantize(numbers, leaf["scale"], leaf["zero"])


def zero_pointed(bits: int, shape: tuple[int, int], scales: Data, codes: LazyPart, zeros: LazyPart) -> PackedWeight:
    """A weight [outputs, inputs] of codes and zero points, with scales [groups, outputs]."""
    kind = dtypes.name_of(scales.dtype)
    parts = {"q": codes, "scale": LazyPart(zeros.shape, kind, (scales,), np.transpose), "zero": zeros}
    return PackedWeight(shape, kind, f"uint{bits}", parts, lambda leaf: with_zeros(bits, leaf))


def coded_numbers(
    outputs: int, inputs: int, bits: int, stored: tuple[Data, ...], numbers: Callable[..., Array]
) -> LazyPart:
    """The codes of unsigned numbers [outputs, inputs], packed if they have 4 bits."""
    if bits == 8:
        return LazyPart((outputs, inputs), "uint8", stored, numbers)
    return LazyPart((outputs, inputs // 2), "uint8", stored, lambda *arrays: packed(numbers(*arrays)))


def coded_weight(coded: str, shape: tuple[int, int], codes: Data, scales: Data) -> PackedWeight:
    """A weight [outputs, inputs] of codes in the encoding `coded` and scales, without zero points."""
    parts = {"q": codes, "scale": scales}
    build = lambda leaf: dequantized(coded, leaf["q"], leaf["scale"])
    return PackedWeight(shape, dtypes.name_of(scales.dtype), coded, parts, build)


def repacked_pairs(stored: Data, shape: tuple[int, ...]) -> LazyPart:
    """Codes of 4 bits, two a byte, the lower bits first, as `shape` [..., bytes] of codes packed as programs read
    them."""

    def codes(pairs: Array) -> Array:
        return packed(np.stack([pairs & 15, pairs >> 4], -1).reshape(*shape[:-1], -1))

    return LazyPart(shape, "uint8", (stored,), codes)


def power_of_two(exponents: Array) -> Array:
    """The powers of two with these exponents, each of which is stored plus 127."""
    return np.asarray(np.ldexp(np.float32(1), exponents.astype(np.int32) - 127))


def block_size(options: Config, name: str) -> list[int]:
    """The rows and columns of the blocks that share a factor: the field `name` of a checkpoint's quantization options.
    Raises UnsupportedError unless it is two positive numbers."""
    size = options.fields.get(name)
    if not isinstance(size, list) or len(size) != 2 or not all(type(n) is int and n > 0 for n in size):
        raise UnsupportedError(f"fp8 without {name} of two numbers is not supported", where=options.where)
    return size


def block_factors(t: WeightTensors, ending: str, size: list[int], shape: tuple[int, int]) -> Data:
    """The factors of the blocks of `size` of a weight of this shape, from the tensor that ends in `ending`: [blocks of
    rows, blocks of inputs], or one for each place along an axis whose last block is smaller."""
    blocks = -(-shape[0] // size[0]), -(-shape[1] // size[1])
    factors = t.get(ending, "", blocks)
    whole = {a: n for a, n in enumerate(shape) if n % size[a]}
    if not whole:
        return factors
    spread = tuple(whole.get(a, n) for a, n in enumerate(blocks))
    return LazyPart(spread, dtypes.name_of(factors.dtype), (factors,), partial(spread_blocks, size, whole))


def spread_blocks(size: list[int], whole: Mapping[int, int], factors: Array) -> Array:
    """Factors of blocks repeated along some axes (axis -> size)."""
    for axis, count in whole.items():
        factors = factors.take(np.arange(count) // min(size[axis], count), axis)
    return factors
