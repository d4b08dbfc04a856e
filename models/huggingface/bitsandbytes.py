"""Reads weights that bitsandbytes has quantized: 4-bit codes of a table of 16 numbers (NF4, FP4), and int8 rows."""

from __future__ import annotations

import json
from math import prod
from typing import Any

import numpy as np

from ...egraph.ir.weight_data import Data, load_data
from ...errors import BadModelError, BadWeightsError, UnsupportedError
from ..common.packed_weight import LazyPart, PackedWeight
from ..common.quantization import dequantized
from .checkpoint import Config
from .quantized_tensors import Array, Replace, WeightTensors

STATE = ".weight.quant_state.bitsandbytes__"  # then the name of the table: nf4 or fp4
ROW_MAJOR = [0]  # numbers of `weight_format` of a matrix stored row by row


def bitsandbytes(options: Config) -> tuple[str, Replace]:
    """Reader of the weights of a checkpoint: (ending that marks one, function from its tensors to its name and data).

    8 bits: `weight` [outputs, inputs] int8 and `SCB` [outputs] float32, the magnitude of the number 127 of a row. The
    rounding of activations to 8 bits, which bitsandbytes adds, is left out.

    4 bits: two codes a byte, the first one in the higher bits, in `weight` [numbers / 2, 1] uint8; the weight is the
    code's number in `weight.quant_map` [16] times the factor of its block in `weight.absmax`. These factors are
    float32, or quantized as well: codes of `weight.nested_quant_map` [256] times `weight.nested_absmax`, plus an
    offset. Sizes are in a JSON text. These weights are expanded when they are read.

    Raises UnsupportedError unless the options say that one of them is there.
    """
    if in_8_bits(options):
        return ".SCB", _rows
    if not options.flag("load_in_4bit", options.flag("_load_in_4bit", False)):
        raise UnsupportedError(
            "bitsandbytes without load_in_8bit and load_in_4bit is not supported", where=options.where
        )
    return ".weight.absmax", _table


def in_8_bits(options: Config) -> bool:
    """Whether weights have 8 bits."""
    return options.flag("load_in_8bit", options.flag("_load_in_8bit", False))


def _rows(t: WeightTensors) -> tuple[str, Data]:
    outputs, inputs = t.rank(".weight", 2)
    largest = t.get(".SCB", "float32", (outputs,))
    t.only(".weight_format", ROW_MAJOR)
    parts: dict[str, Data] = {
        "q": t.get(".weight", "int8"),
        "scale": LazyPart((outputs, 1), "float32", (largest,), lambda s: s[:, None] / np.float32(127)),
    }
    build = lambda leaf: dequantized("int8", leaf["q"], leaf["scale"])
    return f"{t.stem}.weight", PackedWeight((outputs, inputs), "float32", "int8", parts, build)


def _table(t: WeightTensors) -> tuple[str, Data]:
    name = next((n for n in (STATE + "nf4", STATE + "fp4") if t.stem + n in t.data), STATE + "nf4")
    state = Config(_state(t, name), f"tensor {t.stem + name!r}")
    shape = state.fields.get("shape")
    if not isinstance(shape, list) or len(shape) != 2 or not all(type(n) is int and 0 < n < 1 << 32 for n in shape):
        raise BadModelError("shape is not two sizes", where=state.where)
    block, count = state.size("blocksize"), prod(shape)
    blocks = -(-count // block)
    codes, table = t.get(".weight", "uint8", (-(-count // 2), 1)), t.get(".weight.quant_map", "float32", (16,))
    nested = t.stem + ".weight.nested_absmax" in t.data
    factors: tuple[Data, ...] = (t.get(".weight.absmax", "uint8" if nested else "float32", (blocks,)),)
    again, offset = 1, 0.0
    if nested:
        again, offset = state.size("nested_blocksize"), state.number("nested_offset", 0.0)
        more = t.get(".weight.nested_absmax", "float32", (-(-blocks // again),))
        factors += more, t.get(".weight.nested_quant_map", "float32", (256,))

    def expand(bytes_: Array, numbers: Array, sizes: Array, *rest: Array) -> Array:
        if rest:
            sizes = rest[1][sizes] * np.repeat(rest[0], min(again, blocks))[:blocks] + np.float32(offset)
        found = numbers[np.stack([bytes_[:, 0] >> 4, bytes_[:, 0] & 15], -1).reshape(-1)[:count]]
        return np.asarray(found * np.repeat(sizes, min(block, count))[:count]).reshape(shape)

    kind = state.dtype("bfloat16")
    return f"{t.stem}.weight", LazyPart((shape[0], shape[1]), kind, (codes, table, *factors), expand)


def _state(t: WeightTensors, name: str) -> dict[str, Any]:
    """The fields of the JSON text in a tensor. Raises BadWeightsError if it is none."""
    text = load_data(t.get(name, "uint8")).tobytes()
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise BadWeightsError(f"tensor {t.stem + name!r} holds no JSON object")
    return found


__all__ = ["bitsandbytes", "in_8_bits"]
