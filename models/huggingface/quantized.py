"""Imports quantized checkpoints: packed integers and scales become packed weights under the names by which the
functions that build models ask for weights.

A weight is an expression over params of codes, scales and zero points, repacked without loss when they are loaded
(`models/common/quantization.py`); extraction decides whether a program reads them or the expanded weight. Formats:
MXFP4 (gpt-oss), GPTQ, AWQ (gemm), compressed-tensors (compressed_tensors.py), fp8 in blocks, torchao, bitsandbytes.
GPTQ weights whose groups are not contiguous (`desc_act`), and 4-bit ones of bitsandbytes, are expanded when they are
read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import numpy as np

from ...egraph.builders.builders import transpose
from ...egraph.composites.quantized_ops import dequantize
from ...egraph.ir.tensor import Tensor
from ...egraph.ir.weight_data import Data, load_data
from ...egraph.types import dtypes
from ...errors import BadModelError, BadWeightsError, UnsupportedError, warned
from ..common.packed_weight import LazyPart, PackedWeight
from ..common.quantization import dequantized as dequantized_as
from .bitsandbytes import bitsandbytes, in_8_bits
from .checkpoint import Config
from .compressed_tensors import compressed_tensors, rounds_activations
from .quantized_tensors import (
    Array,
    Replace,
    UnroundedActivationsWarning,
    WeightTensors,
    block_factors,
    block_size,
    coded_numbers,
    coded_weight,
    known_bits,
    power_of_two,
    repacked_pairs,
    require_groups,
    transposed,
    unpacked,
    zero_pointed,
)

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # column of each 4-bit number of a word, from the lowest bits on


def dequantized(config: Config, data: Mapping[str, Data], inputs_first: str = "") -> tuple[Config, dict[str, Data]]:
    """Return the config without its `quantization_config`, and the tensors `data` with quantized ones replaced.

    `inputs_first`: regex of the names of weights that are [inputs, outputs] unless they are quantized. A warning says
    where activations are not rounded as the format asks for.

    Raises UnsupportedError for other formats, and for options that change what the numbers mean; raises BadModelError
    for options that disagree; raises BadWeightsError for tensors that are missing, or fit neither together nor to the
    options.
    """
    options = config.section("quantization_config")
    kind = options.text("quant_method", "")
    if kind not in _FORMATS:
        raise UnsupportedError(f"quantized checkpoints of the format {kind[:80]!r} are not supported", where=config.where,
                               hint=f"known: {', '.join(_FORMATS)}")  # fmt: skip
    data = _plain_names(data) if kind == "torchao" else data
    found, used = dict[str, Data](), set[str]()
    ending, replace = _FORMATS[kind](options)
    for name in data:
        if not name.endswith(ending):
            continue
        stem = name.removesuffix(ending)
        tensors = WeightTensors(data, stem, used)
        try:
            target, value = replace(tensors)
        except BadWeightsError as error:
            error.where = error.where or config.where
            raise
        if target in data and target not in used:
            raise BadWeightsError(f"tensor {target!r} is there twice: as it is, and quantized", where=config.where)
        found[target] = transposed(value) if inputs_first and re.search(inputs_first, target) else value
    if not found:
        raise BadWeightsError(f"no tensor ends in {ending!r}, as those of {kind} do", where=config.where,
                              hint="if no weight is quantized, remove quantization_config from config.json")  # fmt: skip
    asks = _ROUNDING.get(kind)
    if asks is not None and asks(options):
        warned("activations keep their precision, which the checkpoint's format rounds to 8 bits or fewer", UnroundedActivationsWarning)  # fmt: skip
    kept = {n: d for n, d in data.items() if n not in used}
    fields = {n: v for n, v in config.fields.items() if n != "quantization_config"}
    return Config(fields, config.where), kept | found


# ---------------------------------------------------------------- formats
def _mxfp4(options: Config) -> tuple[str, Replace]:
    """Reader of MXFP4 weights: (ending that marks one, function from its tensors to its name and data).

    `NAME_blocks` [experts, rows, groups, 16] uint8: blocks of 32 numbers of 4 bits, the lower four bits first.
    `NAME_scales` [experts, rows, groups] uint8: exponent of a block's power of two, plus 127. NAME is [experts, groups
    * 32, rows].
    """

    def replace(t: WeightTensors) -> tuple[str, Data]:
        experts, rows, groups, size = t.rank("_blocks", 4)
        if size != 16:
            raise BadWeightsError(f"tensor {t.stem + '_blocks'!r} has blocks of {size} bytes, not 16")
        blocks, scales = t.get("_blocks", "uint8"), t.get("_scales", "uint8", (experts, rows, groups))
        parts = {
            "q": repacked_pairs(blocks, (experts, rows, groups * 16)),
            "scale": LazyPart((experts, rows, groups), "bfloat16", (scales,), power_of_two),
        }
        build = lambda leaf: transpose(dequantized_as("mxfp4", leaf["q"], leaf["scale"]))
        return t.stem, PackedWeight((experts, groups * 32, rows), "bfloat16", "mxfp4", parts, build)

    return "_blocks", replace


def _gptq(options: Config) -> tuple[str, Replace]:
    """Reader of GPTQ weights: (ending that marks one, function from its tensors to its name and data).

    `qweight` [inputs / n, outputs] int32 with n numbers a word along the inputs, `qzeros` [groups, outputs / n] along
    the outputs, `scales` [groups, outputs], `g_idx` [inputs] the group of each input: scale * (number - zero). The
    first version of the format stores zero - 1.
    """
    bits = known_bits(options, "bits", 4, 8)
    versions = {options.choice(n, "", ("", "gptq", "gptq_v2")) for n in ("checkpoint_format", "format")} - {""}
    if len(versions) > 1:
        raise BadModelError("checkpoint_format and format differ", where=options.where)
    less = 0 if versions == {"gptq_v2"} else 1
    ordered, count = options.flag("desc_act", False), 32 // bits

    def zeros(words: Array) -> Array:
        return ((unpacked(words, bits, 1).astype(np.int32) + less) & ((1 << bits) - 1)).T

    def expand(weight: Array, words: Array, scales: Array, group: Array) -> Array:
        groups, index = scales.shape[0], group.astype(np.int64)
        if index.min() < 0 or index.max() >= groups:
            raise BadWeightsError(f"g_idx names a group outside 0..{groups - 1}")
        offset = zeros(words).T
        numbers = (unpacked(weight, bits, 0).astype(np.int32) - offset[index]).astype(np.float32)
        return np.asarray(numbers * scales.astype(np.float32)[index]).T

    def replace(t: WeightTensors) -> tuple[str, Data]:
        rows, outputs = t.rank(".qweight", 2)
        groups, _ = t.rank(".scales", 2)
        inputs = rows * count
        scales = t.get(".scales", "", (groups, outputs))
        weight, words = t.get(".qweight", "int32"), t.get(".qzeros", "int32", (groups, outputs // count))
        if outputs % count or inputs % groups:
            raise BadWeightsError(f"{t.stem!r}: {inputs} inputs and {outputs} outputs do not fit {groups} groups")
        if f"{t.stem}.g_idx" in t.data:
            index = t.get(".g_idx", "int32", (inputs,))
            if not np.array_equal(load_data(index), np.arange(inputs) // (inputs // groups)):
                kind = dtypes.name_of(scales.dtype)
                return f"{t.stem}.weight", LazyPart((outputs, inputs), kind, (weight, words, scales, index), expand)
        elif ordered and groups > 1:
            raise BadWeightsError(f"tensor '{t.stem}.g_idx' is missing, which desc_act needs")
        else:
            require_groups(options, t.stem, inputs, groups)
        codes = coded_numbers(outputs, inputs, bits, (weight,), lambda w: unpacked(w, bits, 0).T)
        zero = LazyPart((outputs, groups), "uint8", (words,), zeros)
        return f"{t.stem}.weight", zero_pointed(bits, (outputs, inputs), scales, codes, zero)

    return ".qweight", replace


def _awq(options: Config) -> tuple[str, Replace]:
    """Reader of AWQ weights: (ending that marks one, function from its tensors to its name and data).

    `qweight` [inputs, outputs / 8] int32, `qzeros` [groups, outputs / 8], `scales` [groups, outputs]: scale * (number -
    zero). The 4-bit numbers of a word are columns in the order 0, 2, 4, 6, 1, 3, 5, 7.
    """
    known_bits(options, "bits", 4)
    options.refuse(backend="autoawq")
    if options.text("version", "gemm").lower() != "gemm" or not options.flag("zero_point", True):
        raise UnsupportedError("AWQ other than 'gemm' with zero points is not supported", where=options.where)
    place = np.argsort(AWQ_ORDER)

    def columns(words: Array) -> Array:
        numbers = unpacked(words, 4, 1)
        return numbers.reshape(*words.shape, 8)[..., place].reshape(numbers.shape).T

    def replace(t: WeightTensors) -> tuple[str, Data]:
        inputs, words = t.rank(".qweight", 2)
        groups, _ = t.rank(".scales", 2)
        if inputs % groups or inputs % 2:
            raise BadWeightsError(f"{t.stem!r}: {inputs} inputs do not fit {groups} groups")
        require_groups(options, t.stem, inputs, groups)
        scales = t.get(".scales", "", (groups, words * 8))
        weight, zeros = t.get(".qweight", "int32"), t.get(".qzeros", "int32", (groups, words))
        codes = coded_numbers(words * 8, inputs, 4, (weight,), columns)
        zero = LazyPart((words * 8, groups), "uint8", (zeros,), columns)
        return f"{t.stem}.weight", zero_pointed(4, (words * 8, inputs), scales, codes, zero)

    return ".qweight", replace


def _fp8(options: Config) -> tuple[str, Replace]:
    """Reader of fp8 weights: (ending that marks one, function from its tensors to its name and data).

    `weight` e4m3 [outputs, inputs] and `weight_scale_inv` [outputs / n, inputs / m], the factor of each block of n x m
    (`weight_block_size`).
    """
    size = block_size(options, "weight_block_size")
    options.refuse(fmt="e4m3")

    def replace(t: WeightTensors) -> tuple[str, Data]:
        shape = t.matrix(".weight")
        factors = block_factors(t, ".weight_scale_inv", size, shape)
        t.left_out(".input_scale", ".activation_scale")
        return f"{t.stem}.weight", coded_weight("fp8", shape, t.get(".weight", "uint8"), factors)

    return ".weight_scale_inv", replace


def _torchao(options: Config) -> tuple[str, Replace]:
    """Reader of torchao weights: (ending that marks one, function from its tensors to its name and data).

    `NAME:qdata` [outputs, inputs], e4m3 or int8, `NAME:scale` [outputs or blocks, groups], and for int8
    `NAME:zero_point` of its shape: (number - zero) * scale.
    """

    def replace(t: WeightTensors) -> tuple[str, Data]:
        shape = t.rank(":qdata", 2)
        blocks = t.rank(":scale", 2)
        coded = dtypes.name_of(t.data[t.stem + ":qdata"].dtype)
        if coded not in ("int8", "uint8") or any(n % b for n, b in zip(shape, blocks)):
            raise UnsupportedError(f"tensor {t.stem!r}: {coded}{list(shape)} with scales {list(blocks)} is not supported",
                                   hint="Float8Tensor and IntxUnpackedToInt8Tensor are")  # fmt: skip
        parts: dict[str, Data] = {"q": t.get(":qdata", coded), "scale": t.get(":scale", "")}
        if f"{t.stem}:zero_point" in t.data:
            parts["zero"] = t.get(":zero_point", "int8", blocks)

        def build(leaf: Mapping[str, Tensor]) -> Tensor:
            if "zero" in leaf:
                return dequantize(leaf["q"], leaf["scale"], leaf["zero"])
            return dequantized_as("fp8" if coded == "uint8" else "int8", leaf["q"], leaf["scale"])

        return t.stem, PackedWeight(shape, dtypes.name_of(parts["scale"].dtype), f"torchao {coded}", parts, build)

    return ":qdata", replace


def _plain_names(data: Mapping[str, Data]) -> dict[str, Data]:
    """torchao's tensors by the names NAME and NAME:PART. Newer files call them PREFIX._NAME_PART."""
    found: dict[str, Data] = {}
    for name, source in data.items():
        newer = re.fullmatch(r"(.*)\._(weight)_(qdata|scale|zero_point)", name)
        found[f"{newer[1]}.{newer[2]}:{newer[3]}" if newer else name.removesuffix(":_data")] = source
    return found


_FORMATS: Mapping[str, Callable[[Config], tuple[str, Replace]]] = {
    "mxfp4": _mxfp4, "gptq": _gptq, "awq": _awq, "compressed-tensors": compressed_tensors, "fp8": _fp8,
    "torchao": _torchao, "bitsandbytes": bitsandbytes,
}  # fmt: skip
#: Formats of which some ask for rounded activations -> whether these options do.
_ROUNDING: Mapping[str, Callable[[Config], bool]] = {
    "compressed-tensors": rounds_activations, "fp8": lambda _: True, "bitsandbytes": in_8_bits,
    "torchao": lambda options: "DynamicActivation" in str(options.fields.get("quant_type")),
}  # fmt: skip
