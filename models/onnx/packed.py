"""Packed weights of ONNX files: initializers of 2-, 4- and 8-bit numbers with scales and zero points for blocks of
inputs, repacked when they are loaded into the layout of this project's kernels (models/common/quantization.py)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any

import numpy as np

from ...egraph.builders import builders as t
from ...egraph.composites import quantized_ops as q
from ...egraph.ir.tensor import Tensor
from ...egraph.ir.weight_data import Data
from ...egraph.types import dtypes
from ...errors import ShapeError
from ..common.packed_weight import LazyPart
from ..common.quantization import block_of, packed
from .input_sizes import unique
from .node import Node
from .values import FourBits

Array = np.ndarray[Any, Any]
Leaves = Mapping[str, Tensor]


@dataclass(frozen=True)
class BlockLayout:
    """How operands hold a weight [rows, inputs] of numbers of `bits` bits, unsigned or `signed`.

    Every `block` inputs of a row share a scale and a zero point, which is `zero` (of unsigned numbers) if there is no
    operand for it. `padded`: rows are stored in whole blocks. `apart`: each row of packed numbers begins at a byte,
    otherwise only the first. `by_inputs`: the operands are [inputs, rows] and [blocks, rows]. `single`: there is one
    scale and one zero point.
    """

    bits: int
    rows: int
    inputs: int
    block: int
    zero: int
    signed: bool = False
    padded: bool = False
    apart: bool = True
    by_inputs: bool = False
    single: bool = False

    @property
    def blocks(self) -> int:
        """Number of blocks of a row; the last one may be longer than the inputs that are left."""
        return -(-self.inputs // self.block)

    @property
    def width(self) -> int:
        """Inputs of a row in whole blocks."""
        return self.blocks * self.block

    def bytes(self, columns: int) -> int:
        """Bytes of an array [rows, columns] of numbers of `bits` bits, whose rows begin at whole bytes if `apart`."""
        each = columns * self.bits
        return self.rows * -(-each // 8) if self.apart else -(-self.rows * each // 8)


def unpacked(stored: Array, bits: int) -> Array:
    """The unsigned numbers of `bits` bits in bytes [..., n], lowest bits first; uint8 [..., n * 8 / bits]."""
    if bits == 8:
        return stored
    parts = [stored >> shift & ((1 << bits) - 1) for shift in range(0, 8, bits)]
    return np.stack(parts, -1).reshape(*stored.shape[:-1], -1)


def _matrix(w: BlockLayout, columns: int, stored: Array) -> Array:
    """Unsigned numbers [rows, columns] (uint8) from an operand; half of the range is added to signed ones."""
    stored = stored.view(np.uint8)
    if w.apart:
        found = unpacked(stored.reshape(w.rows, -1), w.bits)[:, :columns]
    else:
        shape = (columns, w.rows) if w.by_inputs else (w.rows, columns)
        found = unpacked(stored.reshape(-1), w.bits)[: prod(shape)].reshape(shape)
        found = found.T if w.by_inputs else found
    return found ^ (1 << w.bits - 1) if w.signed else found


def _zeros(w: BlockLayout, stored: Array) -> Array:
    """Zero points [rows, blocks] (uint8) of an operand."""
    if w.single:
        one = replace(w, rows=1, inputs=w.block, apart=False)
        return np.broadcast_to(_matrix(one, 1, stored), (w.rows, w.blocks))
    return _matrix(w, w.blocks, stored)


def _floats(w: BlockLayout, stored: Array) -> Array:
    """Scales or float zero points [rows, blocks] of an operand."""
    if w.single:
        return np.broadcast_to(stored.reshape(1, 1), (w.rows, w.blocks))
    return stored.reshape(w.blocks, w.rows).T if w.by_inputs else stored.reshape(w.rows, w.blocks)


def _codes(w: BlockLayout, stored: Array) -> Array:
    """The codes of the weight as kernels take them, [rows, width], packed if they have fewer than 8 bits."""
    found = _matrix(w, w.width if w.padded else w.inputs, stored)
    found = np.pad(found, ((0, 0), (0, w.width - found.shape[1])))
    return found if w.bits == 8 else packed(found, bits=w.bits)


def _centred(w: BlockLayout, stored: Array) -> Array:
    """The codes of 8 bits less 128."""
    return (_codes(w, stored) ^ 128).view(np.int8)


def leaves(
    n: Node, w: BlockLayout, codes: int, scale: int, zero: int | None, float_zeros: bool = False
) -> Leaves | None:
    """The params `q`, `scale` and, if there is an operand for it, `zero` of a weight; None if an operand is no
    initializer.

    `codes`, `scale`, `zero`: positions of the operands (None: no zero points). `float_zeros`: zero points may be
    floats. Nodes with the same operands share params. Raises ShapeError for operands that do not fit the layout.
    """
    kinds = [_kind(n, p) for p in (codes, zero) if p is not None and n.has(p)]
    if kinds[0] != kinds[-1] and not (float_zeros and kinds[-1] in ("float32", "float16", "bfloat16")):
        raise ShapeError(f"zero points of {kinds[-1]} for numbers of {kinds[0]}")
    found = dict[str, tuple[str, Data]]()
    for part, position in (("q", codes), ("scale", scale), ("zero", -1 if zero is None else zero)):
        if position < 0:
            continue
        stored = n.stored(position) if n.has(position) else None
        if stored is not None:
            _require_rows(n, w, part, position)
            found[part] = stored
        elif n.has(position) or part != "zero":
            return None
    w = replace(w, padded=w.padded and w.width != w.inputs)  # equal layouts have equal keys
    key = (w, *(name for name, _ in found.values()))
    if key not in n.context.packed:
        made = {part: _part(w, part, data, "zero" in found) for part, (_, data) in found.items()}
        n.context.packed[key] = {part: _param(n, f"{found['q'][0]}.{part}", data) for part, data in made.items()}
    return n.context.packed[key]


def as_bytes(n: Node, value: FourBits) -> Tensor:
    """An initializer of 4-bit integers as a param of bytes, for shapes and scales that no `BlockLayout` describes."""
    signed, key = value.kind == "int4", ("bytes", value.name)
    if key not in n.context.packed:
        part = LazyPart(
            value.shape, "int8" if signed else "uint8", (value.data,), partial(_numbers, signed, prod(value.shape))
        )
        n.context.packed[key] = {"bytes": _param(n, f"{value.name}.bytes", part)}
    return n.context.packed[key]["bytes"]


def _numbers(signed: bool, count: int, stored: Array) -> Array:
    """The first `count` numbers of 4 bits, with their signs."""
    found = unpacked(stored.reshape(-1).view(np.uint8), 4)[:count]
    return (found ^ 8).view(np.int8) - np.int8(8) if signed else found


def _param(n: Node, name: str, part: LazyPart) -> Tensor:
    name = unique(name, n.context.params)
    n.context.params[name] = part
    return n.context.check(t.param(name, part.shape, part.dtype))


def _part(w: BlockLayout, part: str, data: Data, with_zeros: bool) -> LazyPart:
    """A part of a weight, computed from the data of its operand."""
    kind = dtypes.name_of(data.dtype)
    if part == "scale" or dtypes.is_float(kind):
        size = 1 if w.single else w.rows * w.blocks
        _require(w, part, dtypes.is_float(kind) and prod(data.shape) == size, data)
        return LazyPart((w.rows, w.blocks), kind, (data,), partial(_floats, w))
    columns = w.blocks if part == "zero" else w.width if w.padded else w.inputs
    size = 1 if w.single and part == "zero" else w.bytes(columns)
    _require(w, part, kind == ("int8" if w.signed and w.bits == 8 else "uint8") and prod(data.shape) == size, data)
    if part == "zero":
        return LazyPart((w.rows, w.blocks), "uint8", (data,), partial(_zeros, w))
    centred = w.bits == 8 and w.zero == 128 and not with_zeros
    return LazyPart(
        (w.rows, w.width * w.bits // 8),
        "int8" if centred else "uint8",
        (data,),
        partial(_centred if centred else _codes, w),
    )


def _kind(n: Node, position: int) -> str:
    """The dtype of an operand."""
    value = n.value(position)
    return value.kind if isinstance(value, FourBits) else n.x(position).dtype


def _require_rows(n: Node, w: BlockLayout, part: str, position: int) -> None:
    """Raise ShapeError if an operand of several axes has its rows along another axis than the layout says."""
    value = n.value(position)
    shape = value.shape if isinstance(value, FourBits) else n.x(position).shape
    if len(shape) > 1 and shape[1 if w.by_inputs else 0] != w.rows:
        raise ShapeError(
            f"{part} has shape {list(shape)}, which does not fit a weight of {w.rows} rows and {w.inputs} inputs"
        )


def _require(w: BlockLayout, part: str, fits: bool, data: Data) -> None:
    """Raises ShapeError if the data of a part do not fit the layout."""
    if not fits:
        kind, shape = dtypes.name_of(data.dtype), list(data.shape)
        raise ShapeError(
            f"{part} is {kind}{shape}, which does not fit a weight of {w.rows} rows and {w.inputs} inputs of {w.bits} bits, in blocks of {w.block}"
        )


def dequantized(w: BlockLayout, found: Leaves) -> Tensor:
    """The matrix [rows, inputs] over leaves with these names, or over rows of them [..., inputs]; its dtype is the
    scale's."""
    codes, scale = found["q"], found["scale"]
    numbers = codes
    if w.bits < 8:
        numbers = q.unpack(codes, bits=w.bits, form="unsigned", axis=codes.rank - 1, block=block_of(w.width, w.bits))
    plain = t.full((1,) * codes.rank, 0.0 if codes.dtype == "int8" else float(w.zero), scale.dtype)
    whole = q.dequantize(numbers, scale, found.get("zero", plain))
    return whole if w.width == w.inputs else t.slice_axis(whole, whole.rank - 1, 0, w.inputs)


__all__ = ["BlockLayout", "as_bytes", "dequantized", "leaves", "unpacked"]
