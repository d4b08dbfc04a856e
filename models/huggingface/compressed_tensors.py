"""Reads weights in the formats of the package compressed-tensors: integers and floats of 4 and 8 bits with a scale for
a whole matrix, a row, a group of inputs or a block."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import ml_dtypes
import numpy as np

from ...egraph.ir.weight_data import Data
from ...egraph.types import dtypes
from ...errors import BadWeightsError, UnsupportedError
from ..common.packed_weight import LazyPart, PackedWeight
from .checkpoint import Config
from .quantized_tensors import (
    Array,
    Replace,
    WeightTensors,
    block_factors,
    block_size,
    coded_numbers,
    coded_weight,
    known_bits,
    power_of_two,
    repacked_pairs,
    require_groups,
    unpacked,
    with_zeros,
)


@dataclass(frozen=True)
class _Form:
    """A format of weights: the `kind` of its numbers ("int" or "float"), their `bits`, and whether several share a word
    or byte of the tensor `weight_packed`; else there is a tensor `weight`."""

    kind: str
    bits: tuple[int, ...]
    together: bool = False


_FORMS = {
    "pack-quantized": _Form("int", (4, 8), True), "int-quantized": _Form("int", (8,)), "float-quantized": _Form("float", (8,)),
    "mxfp4-pack-quantized": _Form("float", (4,), True), "nvfp4-pack-quantized": _Form("float", (4,), True),
}  # fmt: skip
#: Format without a layout of its own -> type of the weights' numbers -> format of the same layout.
_NAIVE = {"naive-quantized": {"int": "int-quantized", "float": "float-quantized"}}
#: Orders of calibration that leave the columns and groups of the stored weights as they are; others permute groups.
_ORDERS = (None, "weight", "static")
_ENDING = "weight_scale"


def compressed_tensors(options: Config) -> tuple[str, Replace]:
    """Reader of compressed-tensors weights: (ending that marks one, function from its tensors to its name and data).

    pack-quantized: `weight_packed` [outputs, words] int32 of 4 or 8 bits, lowest first, each number plus half of the
    range, `weight_shape`; int-quantized: `weight` int8; float-quantized: `weight` e4m3. `weight_scale`: [1] of a
    matrix, [outputs, 1] of rows, [outputs, groups], or one for each block of `block_structure`. Unless `symmetric`,
    `weight_zero_point` is subtracted (`_zero_points`). mxfp4- and nvfp4-pack-quantized: `weight_packed` [outputs,
    inputs / 2] uint8 of two floats e2m1, the lower bits first; scales of 32 numbers are exponents plus 127, those of 16
    numbers e4m3, divided by `weight_global_scale`.

    Raises UnsupportedError for other formats, and options that change what the numbers mean.
    """
    groups = options.section("config_groups")
    options.section("transform_config").refuse(config_groups={})
    options.section("sparsity_config").refuse(format="dense")
    group, named = groups.section(next(iter(groups.fields), "")), options.text("format", "")
    weights = group.section("weights")
    form = _NAIVE.get(named, {}).get(weights.text("type", "int"), named)
    if form not in _FORMS or len(groups.fields) != 1:
        raise UnsupportedError(
            f"compressed-tensors of the format {named[:80]!r} are not supported", where=options.where
        )
    group.refuse(format=named)
    kind = _FORMS[form]
    if weights.fields.get("actorder") not in _ORDERS:
        weights.refuse(actorder=None)
    weights.refuse(type=kind.kind, dynamic=False, **({"symmetric": True} if kind.kind == "float" else {}))
    bits = known_bits(weights, "num_bits", *kind.bits)
    if kind.kind == "float":
        return _ENDING, partial(_floats, weights, bits, form.split("-")[0])
    return _ENDING, partial(_integers, weights, bits, kind.together)


def rounds_activations(options: Config) -> bool:
    """Whether a group of `options` asks for activations that are rounded to few bits."""
    groups = options.section("config_groups")
    return any(groups.section(name).fields.get(f"{side}_activations") for name in groups.fields for side in ("input", "output"))  # fmt: skip


def _integers(weights: Config, bits: int, together: bool, t: WeightTensors) -> tuple[str, Data]:
    outputs, width = t.matrix("weight_packed" if together else "weight")
    inputs = width * (32 // bits) if together else width
    if bits == 4 and inputs % 2:
        raise BadWeightsError(f"{t.stem + 'weight'!r}: {inputs} inputs are no pairs")
    scales = _scales(weights, t, (outputs, inputs))
    groups = scales.shape[1]
    part = t.get("weight_packed", "int32") if together else t.get("weight", "int8")
    t.only("weight_shape", [outputs, inputs])
    _left_out(t)
    if together:
        part = coded_numbers(outputs, inputs, bits, (part,), lambda w: unpacked(w, bits, 1))
    coded = f"int{bits}"
    if not weights.flag("symmetric", True):
        parts = {"q": part, "scale": scales, "zero": _zero_points(t, bits if together else 0, outputs, groups)}
        build = partial(with_zeros, bits if together else 8)
        kind = dtypes.name_of(scales.dtype)
        return f"{t.stem}weight", PackedWeight((outputs, inputs), kind, f"{coded}, zero points", parts, build)
    t.only("weight_zero_point", [0])
    if together and bits == 8:
        part = LazyPart((outputs, inputs), "int8", (part,), lambda w: w.astype(np.int16) - 128)
    return f"{t.stem}weight", coded_weight(coded, (outputs, inputs), part, scales)


def _floats(weights: Config, bits: int, form: str, t: WeightTensors) -> tuple[str, Data]:
    """A weight of floats; `form`: "float" (e4m3), "mxfp4" or "nvfp4" (e2m1)."""
    _left_out(t)
    if bits == 8:
        shape = t.matrix("weight")
        return f"{t.stem}weight", coded_weight("fp8", shape, t.get("weight", "uint8"), _scales(weights, t, shape))
    outputs, pairs = t.matrix("weight_packed")
    inputs, size = 2 * pairs, 32 if form == "mxfp4" else 16
    if inputs % size:
        raise BadWeightsError(f"{t.stem + 'weight'!r}: {inputs} inputs do not fit groups of {size}")
    weights.refuse(group_size=size)
    stored = t.get(_ENDING, "uint8", (outputs, inputs // size))
    if form == "mxfp4":
        scale = LazyPart(stored.shape, "bfloat16", (stored,), power_of_two)
    else:
        whole = t.get("weight_global_scale", "float32", (1,))
        scale = LazyPart(stored.shape, "float32", (stored, whole), lambda s, w: _e4m3(s) / w[0])
    codes = repacked_pairs(t.get("weight_packed", "uint8"), (outputs, pairs))
    return f"{t.stem}weight", coded_weight("mxfp4", (outputs, inputs), codes, scale)


def _e4m3(codes: Array) -> Array:
    return np.asarray(np.ascontiguousarray(codes).view(ml_dtypes.float8_e4m3fn).astype(np.float32))


def _left_out(t: WeightTensors) -> None:
    t.left_out(*(f"{side}_{part}" for side in ("input", "output") for part in ("scale", "zero_point", "global_scale")))


def _scales(weights: Config, t: WeightTensors, shape: tuple[int, int]) -> Data:
    """The scales [outputs or blocks of them, groups of inputs] of a weight of this shape."""
    if weights.text("strategy", "") == "block":
        return block_factors(t, _ENDING, block_size(weights, "block_structure"), shape)
    outputs, inputs = shape
    stored = t.data[t.stem + _ENDING]
    if len(stored.shape) == 1:  # one scale for the whole matrix
        whole = t.get(_ENDING, "", (1,))
        return LazyPart((outputs, 1), dtypes.name_of(whole.dtype), (whole,), lambda s: np.repeat(s, outputs))
    rows, groups = t.matrix(_ENDING)
    if inputs % groups:
        raise BadWeightsError(f"{t.stem + 'weight'!r}: {inputs} inputs do not fit {groups} groups")
    require_groups(weights, t.stem + "weight", inputs, groups)
    found = t.get(_ENDING, "", (1 if rows == 1 else outputs, groups))
    if rows == outputs:
        return found
    return LazyPart((outputs, groups), dtypes.name_of(found.dtype), (found,), lambda s: np.repeat(s, outputs, 0))


def _zero_points(t: WeightTensors, bits: int, outputs: int, groups: int) -> Data:
    """The zero points [outputs, groups] of a weight: int8, or for unsigned codes of `bits` bits (0: int8 codes)
    int32 words [outputs / n, groups] with n numbers a word along the outputs, or int8, which lack half of the range.
    One for the whole matrix is stored as [1].
    """
    name, half = "weight_zero_point", 1 << bits >> 1
    stored = t.data.get(t.stem + name)
    shape = (1,) if stored is not None and len(stored.shape) == 1 else (outputs, groups)
    if not bits or (stored is not None and dtypes.name_of(stored.dtype) == "int8"):
        given = t.get(name, "int8", shape)
        spread: Callable[[Array], Array] = lambda z: np.broadcast_to(z, (outputs, groups))
        if not bits:
            return given if shape == (outputs, groups) else LazyPart((outputs, groups), "int8", (given,), spread)
        return LazyPart((outputs, groups), "uint8", (given,), lambda z: spread(z.astype(np.int16) + half))
    words = t.get(name, "int32", (-(-outputs * bits // 32), groups))
    return LazyPart((outputs, groups), "uint8", (words,), lambda w: unpacked(w, bits, 0)[:outputs])


__all__ = ["compressed_tensors", "rounds_activations"]
