"""Quantized checkpoints: packed integers and scales become lazy float tensors under the names that builders ask for.

Weights are expanded when they are read, so that a program computes with the checkpoint's values in the scales' dtype;
memory and bandwidth are those of that dtype. Formats: MXFP4 (gpt-oss), GPTQ, AWQ (gemm), compressed-tensors
(pack-quantized and int-quantized, symmetric).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...egraph.ir import dtypes
from ...egraph.ir.graph import Data, load_data
from ...errors import BadWeightsError, UnsupportedError
from .checkpoint import Config

Array = np.ndarray[Any, Any]
#: Values of the sixteen 4-bit floats (e2m1) of MXFP4.
FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # column of each 4-bit number of a word, from the lowest bits on


@dataclass(frozen=True)
class Dequantized:
    """A lazy tensor [shape] of `dtype`, computed from stored tensors when it is loaded."""

    shape: tuple[int, ...]
    dtype: str
    parts: tuple[Data, ...]
    expand: Callable[..., Array]  # the parts' arrays -> float32, or the dtype

    def load(self) -> Array:
        """Read the parts and expand them."""
        found = self.expand(*map(load_data, self.parts))
        return found.astype(dtypes.numpy_dtype(self.dtype), copy=False).reshape(self.shape)


def dequantized(config: Config, data: Mapping[str, Data]) -> tuple[Config, dict[str, Data]]:
    """Return the config without its `quantization_config`, and the tensors with quantized ones replaced.

    UnsupportedError for other formats, and for options that change what the numbers mean; BadWeightsError for tensors
    that are missing or do not fit together.
    """
    options = config.section("quantization_config")
    kind = options.text("quant_method", "")
    if kind not in _FORMATS:
        raise UnsupportedError(f"quantized checkpoints of the format {kind[:80]!r} are not supported", where=config.where,
                               hint=f"known: {', '.join(_FORMATS)}")  # fmt: skip
    found, used = dict[str, Data](), set[str]()
    ending, replace = _FORMATS[kind](options)
    for name in data:
        if not name.endswith(ending):
            continue
        stem = name.removesuffix(ending)
        tensors = _Tensors(data, stem, used)
        try:
            target, value = replace(tensors)
        except BadWeightsError as error:
            error.where = error.where or config.where
            raise
        if target in data and target not in used:
            raise BadWeightsError(f"tensor {target!r} is there twice: as it is, and quantized", where=config.where)
        found[target] = value
    if not found:
        raise BadWeightsError(f"no tensor ends in {ending!r}, as those of {kind} do", where=config.where)
    kept = {n: d for n, d in data.items() if n not in used}
    fields = {n: v for n, v in config.fields.items() if n != "quantization_config"}
    return Config(fields, config.where), kept | found


@dataclass(frozen=True)
class _Tensors:
    """The tensors of one quantized weight, which share a stem."""

    data: Mapping[str, Data]
    stem: str
    used: set[str]

    def get(self, ending: str, dtype: str, shape: tuple[int, ...] | None = None) -> Data:
        """A tensor of this stem. BadWeightsError if it is missing, or of another dtype ("" for any float) or shape."""
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
        """The shape of a tensor that must have so many axes, all longer than 0."""
        found = self.data.get(self.stem + ending)
        if found is None:
            raise BadWeightsError(f"tensor {self.stem + ending!r} is missing")
        if len(found.shape) != rank or 0 in found.shape:
            raise BadWeightsError(f"tensor {self.stem + ending!r} has shape {list(found.shape)}, not {rank} axes")
        return tuple(found.shape)

    def drop(self, *endings: str) -> None:
        """Mark tensors as used that hold nothing that is needed."""
        self.used.update(self.stem + e for e in endings if self.stem + e in self.data)


Replace = Callable[[_Tensors], tuple[str, Data]]


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


def _bits(options: Config, name: str, *known: int) -> int:
    """A field that is one of the known numbers of bits. UnsupportedError otherwise."""
    found = options.size(name)
    if found not in known:
        raise UnsupportedError(f"{name}={found} is not supported", where=options.where, hint=f"known: {known}")
    return found


# ---------------------------------------------------------------- formats
def _mxfp4(options: Config) -> tuple[str, Replace]:
    """Blocks of 32 numbers of 4 bits with a common power of two: `NAME_blocks` [experts, rows, groups, 16] uint8, the
    lower four bits first, `NAME_scales` [experts, rows, groups] uint8, 127 above the exponent. NAME is [experts,
    groups * 32, rows]."""

    def expand(blocks: Array, scales: Array) -> Array:
        experts, rows, groups, _ = blocks.shape
        out = np.empty((experts, groups * 32, rows), dtypes.numpy_dtype("bfloat16"))
        for place, block, scale in zip(
            out, blocks, scales
        ):  # one expert at a time: float32 takes eight times the memory
            values = np.stack([FP4[block & 15], FP4[block >> 4]], -1).reshape(rows, groups, 32)
            place[...] = np.ldexp(values, scale.astype(np.int32)[..., None] - 127).reshape(rows, groups * 32).T
        return out

    def replace(t: _Tensors) -> tuple[str, Data]:
        experts, rows, groups, size = t.rank("_blocks", 4)
        if size != 16:
            raise BadWeightsError(f"tensor {t.stem + '_blocks'!r} has blocks of {size} bytes, not 16")
        parts = t.get("_blocks", "uint8"), t.get("_scales", "uint8", (experts, rows, groups))
        return t.stem, Dequantized((experts, groups * 32, rows), "bfloat16", parts, expand)

    return "_blocks", replace


def _gptq(options: Config) -> tuple[str, Replace]:
    """`qweight` [inputs / n, outputs] int32 with n numbers a word along the inputs, `qzeros` [groups, outputs / n] along
    the outputs, `scales` [groups, outputs], `g_idx` [inputs] the group of each input: scale * (number - zero). The
    first version of the format stores zero - 1."""
    bits = _bits(options, "bits", 4, 8)
    less = 0 if options.text("checkpoint_format", "gptq") == "gptq_v2" else 1
    count = 32 // bits

    def expand(weight: Array, zeros: Array, scales: Array, *group: Array) -> Array:
        numbers = unpacked(weight, bits, 0)
        offset = (unpacked(zeros, bits, 1).astype(np.int32) + less) & ((1 << bits) - 1)
        inputs, groups = numbers.shape[0], scales.shape[0]
        index = group[0].astype(np.int64) if group else np.arange(inputs) // (inputs // groups)
        if index.min() < 0 or index.max() >= groups:
            raise BadWeightsError(f"g_idx names a group outside 0..{groups - 1}")
        weight = (numbers.astype(np.int32) - offset[index]).astype(np.float32)
        return np.asarray(weight * scales.astype(np.float32)[index]).T

    def replace(t: _Tensors) -> tuple[str, Data]:
        rows, outputs = t.rank(".qweight", 2)
        groups, _ = t.rank(".scales", 2)
        scales = t.get(".scales", "", (groups, outputs))
        parts = [t.get(".qweight", "int32"), t.get(".qzeros", "int32", (groups, outputs // count)), scales]
        if outputs % count or (rows * count) % groups:
            raise BadWeightsError(f"{t.stem!r}: {rows * count} inputs and {outputs} outputs do not fit {groups} groups")
        if f"{t.stem}.g_idx" in t.data:
            parts.append(t.get(".g_idx", "int32", (rows * count,)))
        return f"{t.stem}.weight", Dequantized(
            (outputs, rows * count), dtypes.name_of(scales.dtype), tuple(parts), expand
        )

    return ".qweight", replace


def _awq(options: Config) -> tuple[str, Replace]:
    """`qweight` [inputs, outputs / 8] int32, `qzeros` [groups, outputs / 8], `scales` [groups, outputs]: scale * (number -
    zero). The 4-bit numbers of a word are columns in the order 0, 2, 4, 6, 1, 3, 5, 7."""
    _bits(options, "bits", 4)
    if options.text("version", "gemm").lower() != "gemm" or not options.flag("zero_point", True):
        raise UnsupportedError("AWQ other than 'gemm' with zero points is not supported", where=options.where)
    place = np.argsort(AWQ_ORDER)

    def columns(words: Array) -> Array:
        numbers = unpacked(words, 4, 1)
        return numbers.reshape(*words.shape, 8)[..., place].reshape(numbers.shape)

    def expand(weight: Array, zeros: Array, scales: Array) -> Array:
        each = weight.shape[0] // scales.shape[0]
        offset, factor = (np.repeat(x, each, 0) for x in (columns(zeros).astype(np.int32), scales.astype(np.float32)))
        return ((columns(weight).astype(np.int32) - offset).astype(np.float32) * factor).T

    def replace(t: _Tensors) -> tuple[str, Data]:
        inputs, words = t.rank(".qweight", 2)
        groups, _ = t.rank(".scales", 2)
        if inputs % groups:
            raise BadWeightsError(f"{t.stem!r}: {inputs} inputs do not fit {groups} groups")
        scales = t.get(".scales", "", (groups, words * 8))
        parts = t.get(".qweight", "int32"), t.get(".qzeros", "int32", (groups, words)), scales
        return f"{t.stem}.weight", Dequantized((words * 8, inputs), dtypes.name_of(scales.dtype), parts, expand)

    return ".qweight", replace


def _compressed(options: Config) -> tuple[str, Replace]:
    """compressed-tensors. pack-quantized: `weight_packed` [outputs, words] int32 of 4 or 8 bits, lowest first, each number
    plus half of the range, `weight_shape`; int-quantized: `weight` int8. `weight_scale` [outputs, groups]."""
    form, groups = options.text("format", ""), options.section("config_groups")
    if form not in ("pack-quantized", "int-quantized") or len(groups.fields) != 1:
        raise UnsupportedError(f"compressed-tensors of the format {form[:80]!r} are not supported", where=options.where)
    group = groups.section(next(iter(groups.fields)))
    group.refuse(input_activations=None, output_activations=None)
    group.section("weights").refuse(symmetric=True, type="int", actorder=None)
    bits = _bits(group.section("weights"), "num_bits", 4, 8)

    def expand(weight: Array, scales: Array) -> Array:
        if form == "pack-quantized":
            weight = unpacked(weight, bits, 1).astype(np.int16) - (1 << (bits - 1))
        inputs = weight.shape[1] - weight.shape[1] % scales.shape[1]
        return weight[:, :inputs].astype(np.float32) * np.repeat(
            scales.astype(np.float32), inputs // scales.shape[1], 1
        )

    def replace(t: _Tensors) -> tuple[str, Data]:
        packed = form == "pack-quantized"
        outputs, width = t.rank("weight_packed" if packed else "weight", 2)
        _, groups = t.rank("weight_scale", 2)
        inputs = width * (32 // bits) if packed else width
        scales = t.get("weight_scale", "", (outputs, groups))
        if inputs % groups:
            raise BadWeightsError(f"{t.stem + 'weight'!r}: {inputs} inputs do not fit {groups} groups")
        part = t.get("weight_packed" if packed else "weight", "int32" if packed else "int8")
        t.drop("weight_shape", "weight_zero_point")
        return f"{t.stem}weight", Dequantized((outputs, inputs), dtypes.name_of(scales.dtype), (part, scales), expand)

    return ("weight_packed", replace) if form == "pack-quantized" else ("weight_scale", replace)


_FORMATS: Mapping[str, Callable[[Config], tuple[str, Replace]]] = {
    "mxfp4": _mxfp4, "gptq": _gptq, "awq": _awq, "compressed-tensors": _compressed,
}  # fmt: skip
