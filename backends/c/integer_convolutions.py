"""Declares library kernels in C for convolutions of bytes by integer dot products, with what follows them: scales,
bias, activation, a residual, and rounding to bytes.

Direct (integer_tiles.py) and depthwise (integer_depthwise.py) convolutions of channels-last images. They compute
`integer_conv` and what is made of it, and convolutions of dequantized bytes. Sums are exact. A sum is multiplied by the
product of the scales once, so that results are nearer to the exact ones than those of a convolution of dequantized
values, and may round to a neighbouring byte where the latter's error crosses a half.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from itertools import product
from math import prod
from typing import Any

import numpy as np

from ...egraph.ops.ops import OPS, Type
from ...egraph.ops.type_laws import infer
from ...extract.model.kernel import Call, Code, Operand
from ...extract.model.library_kernel import LibraryKernel, identify
from ..ir.definitions import source_of
from ..library.torch_calls import GEOMETRY, both, channels_last, extents, filled, is_channels_last
from .call_facts import channels_last_x, ending, few_elements, image, pads_before, pair, window_of
from .convolutions import direct_sizes
from .integer_depthwise import INTEGER_DEPTHWISE
from .integer_direct import INTEGER_DIRECT
from .integer_stacks import INTEGER_STACKS
from .integer_tiles import INTEGER_TILES
from .integer_wide import WIDE_PIXELS
from .tiled_products import MAX_TAPS

SOURCE: Mapping[str, str] = {
    "integer_tiles": INTEGER_TILES,
    "quad_conv": INTEGER_DIRECT,
    "quad_depthwise": INTEGER_DEPTHWISE,
    "quad_products": INTEGER_STACKS,
}
"""C functions and their text. All of them are in every program that uses one: the text is compiled once."""

BYTES = ("uint8", "int8")
LONGEST_SUM = (2**31 - 1) // 255**2  # products of two bytes, without zero points, whose sum fits into int32
(
    X_SIGNED,
    W_SIGNED,
    OUT_SIGNED,
    R_SIGNED,
    BY_CHANNEL,
    W_ZEROS,
    FLOAT_BIAS,
    INTEGER_BIAS,
    MIDDLE_SIGNED,
    COPIED,
    CENTRED,
    X_SCALED,
) = (1 << i for i in range(12))  # flags of the C functions
SUMS, FLOATS, ROUNDED, ADDED = range(4)  # kinds of results

_NONE = "full(value=0, shape=e, dtype=d)"  # zero points of weights: without them no sums of x are needed
_SUMS = f"integer_conv(x, w, z, {{}}, {GEOMETRY})"
_CODES = f"cast({_SUMS}, dtype='float32') * m"
_VALUES = f"conv(dequantize(x, a, z), dequantize(w, m, {{}}), {GEOMETRY})"
#: suffix -> (pattern of a convolution as floats, in which {} are the zero points of weights; activations behind it)
SCALED = {
    "": (_VALUES, 3),
    "_bias": (f"{_VALUES} + b", 3),
    "_codes": (_CODES, 1),
    "_codes_bias": (f"{_CODES} + b", 1),
    "_codes_integer_bias": (f"cast({_SUMS} + b, dtype='float32') * m", 1),
}
ACTIVATIONS = ("{}", "relu({})", "clip({}, lo=lo, hi=hi)")
_MIDDLE = "dequantize(quantize({}, p, q), j, q)"
_RESIDUAL = "dequantize(r, u, v)"


# ---------------------------------------------------------------- packed weights
def bytes_at_cache_line(*parts: Any) -> Any:
    """The bytes of arrays, one after the other, in an array that begins at a cache line (64 bytes)."""
    size = sum(p.nbytes for p in parts)
    room = np.empty(size + 64, np.uint8)
    start = -room.ctypes.data % 64
    found = room[start : start + size]
    found[...] = np.concatenate([np.ascontiguousarray(p).reshape(-1).view(np.uint8) for p in parts])
    return found


def integer_packed(w: Any, groups: int) -> Any:
    """Bytes of weights [K, C, height, width] or [K, C, width]: the sum of each channel's (int32), then [group][panel of
    16 output channels][row of the window][quad of its columns and channels][16][4], with zeros behind the last channel
    of a group and behind the last number of a row. Unsigned bytes are stored minus 128."""
    k, c, *window = w.shape
    rows, columns = (1, *window)[-2:]
    numbers = np.asarray(w).reshape(k, c, rows, columns).transpose(0, 2, 3, 1).astype(np.int16)
    made, run = k // groups, c * columns
    padded = np.zeros((groups, -(-made // 16) * 16, rows, -(-run // 4) * 4), np.int8)
    padded[:, :made, :, :run] = numbers.reshape(groups, made, rows, run) - (128 if w.dtype == np.uint8 else 0)
    quads = padded.reshape(groups, -1, 16, rows, padded.shape[-1] // 4, 4)
    return bytes_at_cache_line(padded.sum((2, 3), dtype=np.int32), quads.transpose(0, 1, 3, 4, 2, 5))


def integer_depthwise_packed(w: Any) -> Any:
    """Bytes of weights [C, 1, height, width] or [C, 1, width]: the sum of each channel's (int32), then [chunk of 16
    channels][four rows of the window][column][16][4], with zeros behind the last channel and row. Unsigned bytes
    are stored minus 128."""
    c, _, *window = w.shape
    rows, columns = (1, *window)[-2:]
    padded = np.zeros((-(-c // 16) * 16, -(-rows // 4) * 4, columns), np.int8)
    padded[:c, :rows] = np.asarray(w).reshape(c, rows, columns).astype(np.int16) - (128 if w.dtype == np.uint8 else 0)
    fours = padded.reshape(-1, 16, padded.shape[1] // 4, 4, columns)
    return bytes_at_cache_line(padded.sum((1, 2), dtype=np.int32), fours.transpose(0, 2, 4, 1, 3))


HELPERS: dict[str, str] = {
    f.__name__: source_of(f) for f in (bytes_at_cache_line, integer_packed, integer_depthwise_packed)
}
"""Helper functions of emitted programs that pack weights: name -> source."""


# ---------------------------------------------------------------- conditions
def _known(call: Call) -> bool:
    """Condition on calls: x and w are bytes, and all sizes are known numbers."""
    return (
        call.operands["x"].type.dtype in BYTES
        and call.operands["w"].type.dtype in BYTES
        and call.operands["x"].type.rank in (3, 4)
        and all(isinstance(d, int) for o in call.buffers.values() for d in extents(o))
        and prod(window_of(call)) <= MAX_TAPS
    )


def by_channel(operand: Operand, axis: int, channels: int) -> bool:
    """Whether an operand is one number, or one for each output channel along an axis."""
    return prod(extents(operand)) == 1 or prod(extents(operand)) == extents(operand)[axis] == channels


def _scalars(call: Call) -> bool:
    """Condition on calls: zero points and scales of values are one number each, the factor of sums one or one for each
    channel, the bias one for each channel, and dtypes are those that the C functions read."""
    one = all(prod(extents(o)) == 1 for n, o in call.operands.items() if n in "azsopqjuv")
    kinds = {n: o.type.dtype for n, o in call.operands.items()}
    if not one or any(kinds[n] != "float32" for n in "amspju" if n in kinds):
        return False
    if kinds["z"] != kinds["x"] or kinds.get("y", kinds["w"]) != kinds["w"]:
        return False
    k = extents(call.output)[1]
    axes = {"y": 0, "m": 0 if "a" in kinds else 1}  # of channels: scales of weights, or factors of sums
    if not all(by_channel(call.operands[n], axis, k) for n, axis in axes.items() if n in kinds):
        return False
    if "a" in kinds and prod(extents(call.operands["w"])[1:]) > LONGEST_SUM:
        return False
    b, r = call.operands.get("b"), call.operands.get("r")
    fits = b is None or (b.type.dtype in ("float32", "int32") and extents(b) == (1, k, *(1,) * (b.type.rank - 2)))
    fits = fits and ("y" in call.operands or call.operands["w"].type.dtype == "int8")
    return fits and (r is None or (r.type.dtype in BYTES and call.operands["v"].type.dtype == r.type.dtype))


def _fills(call: Call) -> bool:
    """Condition on calls: the convolution itself has the result's shape (nothing that follows stretches it)."""
    x, w = (Type(call.operands[n].type.shape, "int32") for n in "xw")
    op = OPS["conv"]
    return infer(op, (x, w), {name: call.attrs[name] for name in op.attrs}).shape == call.output.type.shape


def _residual(call: Call) -> bool:
    """Condition on calls: the residual has the result's type and is channels-last."""
    r = call.operands["r"]
    return r.type == call.output.type and is_channels_last(r)


def _copied(call: Call) -> bool:
    """Whether x is copied with its padding: bytes have a sign, or channels of a group are no multiple of four."""
    return call.operands["x"].type.dtype == "int8" or extents(call.operands["w"])[1] % 4 != 0


def _direct(call: Call) -> bool:
    """Condition on calls: the direct convolution of bytes supports x's dtype and layout and the dilations."""
    x, (k, own, *_) = call.operands["x"], extents(call.operands["w"])
    if not _copied(call):
        return channels_last_x(call)
    alone = own == 1 and k == call.attrs["groups"]  # for which there is a depthwise convolution
    return not alone and (pair(call, "dilations")[1] == 1 or own % 4 == 0) and min(x.strides) >= 0


def _depthwise(call: Call) -> bool:
    """Condition on calls: the convolution is depthwise, with one output channel for each input channel."""
    k, c, *_ = extents(call.operands["w"])
    return c == 1 and k == call.attrs["groups"] and channels_last_x(call)


# ---------------------------------------------------------------- code
def _bits(value: float) -> int:
    return int(struct.unpack("<i", struct.pack("<f", value))[0])


def _limits(call: Call, act: int) -> tuple[float, float]:
    """The limits that an activation sets."""
    if act == 2:
        return call.attrs["lo"], call.attrs["hi"]
    return (0.0 if act == 1 else float("-inf")), float("inf")


def flags_of(call: Call) -> int:
    """Flags of a C function that follow from the operands' types."""
    given = call.operands
    signed = {"x": X_SIGNED, "w": W_SIGNED, "r": R_SIGNED, "q": MIDDLE_SIGNED}
    found = sum(flag for name, flag in signed.items() if name in given and given[name].type.dtype == "int8")
    found += OUT_SIGNED * (call.output.type.dtype == "int8")
    for name, flag in (("m", BY_CHANNEL), ("y", W_ZEROS)):
        found += flag * (name in given and prod(extents(given[name])) > 1)
    found += CENTRED * ("y" not in given) + X_SCALED * ("a" in given)
    if "b" in given:
        found += FLOAT_BIAS if given["b"].type.dtype == "float32" else INTEGER_BIAS
    return found


def operands_of(call: Call) -> str:
    """The operands of a C function and its scratch memory; absent ones are not read."""
    found = [call.names.get(o, call.names["x"]) for o in "xwzyambsorpqjuv"]
    return ", ".join((*found, call.names["out"], call.names["scratch"]))


def ends(call: Call, kind: int, act: int, flags: int) -> str:
    """The last arguments of a C function: kind of results, flags, limits before and after a residual."""
    limits = _limits(call, act)
    free = (float("-inf"), float("inf"))
    ordered = (*free, *limits) if kind == ADDED else (*limits, *free)
    return ", ".join(map(str, (kind, flags_of(call) + flags, *map(_bits, ordered))))


def _direct_code(call: Call, kind: int, act: int) -> str:
    last = ends(call, kind, act, COPIED * _copied(call))
    return f"quad_conv({operands_of(call)}, {direct_sizes(call)}, {last})"


def widened_bytes(pixels: int, weights: int, values: int) -> int:
    """Bytes of scratch memory for weights and values as 16-bit numbers, which some processors multiply faster than
    bytes (integer_wide.py)."""
    return 64 + 2 * (weights + values) if pixels >= WIDE_PIXELS else 0


def _direct_scratch(call: Call) -> int:
    """Bytes of scratch memory: four 32-bit numbers a channel, the padded copy of x or a line of it, and what is
    widened."""
    (n, c, h, w), (_, k, oh, ow), groups = image(call.operands["x"]), image(call.output), int(call.attrs["groups"])
    panels, (kh, kw), own = groups * -(-(k // groups) // 16), window_of(call), c // groups
    numbers, weights = 4 * 4 * panels * 16, 64 * panels * kh * -(-kw * own // 4)
    if not _copied(call):
        return numbers + own + widened_bytes(n * oh * ow, weights, n * c * h * w + own)
    reach = ((o - 1) * step + (size - 1) * apart + 1 for o, step, size, apart in
             zip((oh, ow), pair(call, "strides"), window_of(call), pair(call, "dilations")))  # fmt: skip
    copy = n * c * prod(reach) + 4  # the last quad may end behind the copy
    return numbers + copy + widened_bytes(n * oh * ow, weights, copy + own)


def _depthwise_code(call: Call, kind: int, act: int) -> str:
    (n, c, h, w), (_, _, oh, ow) = image(call.operands["x"]), image(call.output)
    numbers = (
        n, h, w, c, oh, ow, *window_of(call), *pair(call, "strides"), *pair(call, "dilations"), *pads_before(call),
    )  # fmt: skip
    return f"quad_depthwise({operands_of(call)}, {', '.join(map(str, numbers))}, {ends(call, kind, act, 0)})"


def _depthwise_scratch(call: Call) -> int:
    """Bytes of scratch memory: four 32-bit numbers a channel, and a line of x."""
    _, c, _, w = image(call.operands["x"])
    return 4 * 4 * (-(-c // 16) * 16) + w * c


@dataclass(frozen=True)
class IntegerKind:
    """One algorithm of convolutions of bytes, from which library kernels with all epilogues are made.

    `applies`: predicate of the calls that it supports. `code`: source of a call for a kind of results and an
    activation's number. `scratch`: bytes of scratch memory of a call. `prep`: packing of weights, by the helper
    function `helper`.
    """

    applies: Callable[[Call], bool]
    code: Callable[[Call, int, int], str]
    scratch: Callable[[Call], int]
    prep: Code
    helper: str


KINDS: Mapping[str, IntegerKind] = {
    "integer_conv": IntegerKind(
        _direct, _direct_code, _direct_scratch, "integer_packed({w}, {groups})", "integer_packed"
    ),
    "integer_depthwise": IntegerKind(
        _depthwise, _depthwise_code, _depthwise_scratch, "integer_depthwise_packed({w})", "integer_depthwise_packed"
    ),
}


# ---------------------------------------------------------------- rows
def _forms() -> Iterator[tuple[str, str, int, int]]:
    """(suffix of the name, pattern, kind of results, activation) of each kernel of an algorithm."""
    for zeros, points in (("", _NONE), ("_zeros", "y")):
        yield zeros, _SUMS.format(points), SUMS, 0
        for suffix, (scaled, acts) in SCALED.items():
            floats = scaled.format(points)
            for act, spelled in enumerate(ACTIVATIONS[: 1 if zeros else 3]):
                yield f"_scaled{zeros}{suffix}{ending(spelled)}", spelled.format(floats), FLOATS, act
            for act, spelled in enumerate(ACTIVATIONS[: 1 if zeros else acts]):
                yield (
                    f"_quantized{zeros}{suffix}{ending(spelled)}",
                    f"quantize({spelled.format(floats)}, s, o)",
                    ROUNDED,
                    act,
                )
    for (suffix, (scaled, acts)), left in product(SCALED.items(), (False, True)):
        middle = _MIDDLE.format(scaled.format(_NONE))
        total, side = (f"{_RESIDUAL} + {middle}", "_left") if left else (f"{middle} + {_RESIDUAL}", "")
        for act, spelled in enumerate(ACTIVATIONS[: min(acts, 2)]):
            yield (
                f"_quantized{suffix}_residual{side}{ending(spelled)}",
                f"quantize({spelled.format(total)}, s, o)",
                ADDED,
                act,
            )


def _row(name: str, kind: IntegerKind, form: tuple[str, str, int, int]) -> LibraryKernel:
    suffix, pattern, results, act = form
    full = f"c.{name}{suffix}"
    code = identify(lambda call: kind.code(call, results, act), full)
    added = results == ADDED
    return LibraryKernel(
        full, "c", pattern, code, family="conv", dense=("w", "b", "m"), layout=channels_last, scratch=kind.scratch,
        prep={"w": kind.prep}, setup=("address", "c_function", "c_library", "bytes_at_cache_line", kind.helper),
        source=lambda call: SOURCE, rate=2.0 if "_zeros" in suffix else 16.0, version=VERSION, reads_last=("x",), exact=results == SUMS,
        applies=both(filled, _known, _fills, kind.applies, _scalars, few_elements, _residual if added else None),
        inplace=("r",) if added and name == "integer_conv" else (),
    )  # fmt: skip


VERSION = blake2b("".join(SOURCE.values()).encode(), digest_size=4).hexdigest()
"""Version of kernels in keys of stored measurements: other text has other times."""


def integer_convolution_rows() -> list[LibraryKernel]:
    """Library kernels for convolutions of bytes: each algorithm with sums, floats or bytes as results, with and without
    bias (float32, or int32 that is added to sums) and activation, and a residual of bytes."""
    return [_row(name, kind, form) for name, kind in KINDS.items() for form in _forms()]


__all__ = [
    "HELPERS", "SOURCE", "VERSION", "by_channel", "bytes_at_cache_line", "ends", "flags_of", "integer_convolution_rows",
    "integer_depthwise_packed", "integer_packed", "operands_of", "widened_bytes",
]  # fmt: skip
