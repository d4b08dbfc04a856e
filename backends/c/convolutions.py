"""Declares library kernels in C for 1-D and 2-D convolutions and for 2-D pooling.

Direct convolutions (tiled_products.py), Winograd's (winograd.py) and depthwise ones (windows.py), with bias, residual
and activation fused; maximum and average pooling. Values are channels-last; weights are packed at load. A call has less
overhead than one of oneDNN through Torch (20 µs), and writes to memory that the plan has assigned.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import product
from typing import Any

import numpy as np

from ...extract.model.kernel import Call, Code
from ...extract.model.library_kernel import LibraryKernel, identified, identify
from ..ir.definitions import source_of
from ..library.torch_calls import (
    CONVOLUTIONS,
    SINGLE,
    both,
    channel_bias,
    channels_last,
    extents,
    filled,
    residual_fits_last,
    usable,
)
from .call_facts import ending, few_elements, image, pads_before, pair, window_of
from .convolution_conditions import (
    has_one_or_two_axes,
    is_copied,
    is_depthwise,
    is_direct,
    is_grouped,
    is_pool,
    is_winograd,
)
from .depthwise import DEPTHWISE, by_ring
from .grouped import GROUPED
from .tiled_products import DIRECT, MICRO_KERNEL
from .windows import WINDOWS
from .winograd import BLOCK_BYTES, LEAST_TILES, MOST_TILES, WINOGRAD

SOURCE: Mapping[str, str] = {
    "tiled_conv": MICRO_KERNEL + DIRECT,
    "tiled_winograd": WINOGRAD,
    "tiled_windows": WINDOWS,
    "tiled_depthwise": DEPTHWISE,
}
"""C functions and their text. All of them are in every program that uses one: the text is compiled once."""

GROUPED_SOURCE: Mapping[str, str] = {**SOURCE, "grouped_conv": GROUPED}
"""The same, and the function of convolutions in small groups, which only programs with one contain."""


def _version(*functions: str) -> str:
    return blake2b("".join(GROUPED_SOURCE[name] for name in functions).encode(), digest_size=4).hexdigest()


VERSION = _version("tiled_conv", "tiled_winograd", "tiled_windows")
"""Version of kernels in keys of stored measurements: other text has other times."""

BIAS, RESIDUAL, COPIED = 1, 2, 4  # flags of the C functions

#: activation pattern -> its number in C
ACTIVATIONS = {"{}": 0, "relu({})": 1, "clip({}, lo=lo, hi=hi)": 2, "hard_swish({})": 3, "silu({})": 4}
AFTER_RESIDUAL = ("{}", "relu({})")  # activations of a sum with a residual
BEFORE_RESIDUAL = ("hard_swish({})", "silu({})")  # activations to which a residual is added


# ---------------------------------------------------------------- packed weights
def from_cache_line(values: Any) -> Any:
    """Copy of float32 values in a contiguous array that begins at a cache line (64 bytes): a vector that is loaded from
    it lies in one line."""
    room = np.empty(values.size + 16, np.float32)
    start = -room.ctypes.data % 64 // 4
    found = room[start : start + values.size].reshape(values.shape)
    found[...] = values
    return found


def conv_packed(w: Any, groups: int) -> Any:
    """Weights [K, C, height, width] or [K, C, width] as [group][panel of 16 output channels][tap][C][16], with zeros
    behind the last channel of a group."""
    k, c, *window = w.shape
    made = k // groups
    padded = np.zeros((groups, -(-made // 16) * 16, c, int(np.prod(window))), np.float32)
    padded[:, :made] = np.asarray(w).reshape(groups, made, c, -1)
    return from_cache_line(padded.reshape(groups, -1, 16, c, padded.shape[-1]).transpose(0, 1, 4, 3, 2))


def winograd_packed(w: Any) -> Any:
    """Weights [K, C, 3, 3], transformed for F(2x2, 3x3), as [16][panel of 16 output channels][C][16]."""
    k, c = w.shape[:2]
    g = np.array([[1.0, 0.0, 0.0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0.0, 0.0, 1.0]])
    taps = np.asarray(w).reshape(k // 16, 16, c, 9).transpose(3, 0, 2, 1).astype(np.float64, order="C")
    made = (np.kron(g, g) @ taps.reshape(9, -1)).astype(np.float32)
    return from_cache_line(made.reshape(16, k // 16, c, 16))


def depthwise_packed(w: Any) -> Any:
    """Weights [C, 1, height, width] or [C, 1, width] as [tap][C]."""
    return from_cache_line(np.asarray(w).reshape(w.shape[0], -1).T)


HELPERS: dict[str, str] = {
    f.__name__: source_of(f) for f in (from_cache_line, conv_packed, winograd_packed, depthwise_packed)
}
"""Helper functions of emitted programs that pack weights: name -> source."""


def direct_sizes(call: Call) -> str:
    """The arguments of a C function for direct convolutions: sizes and strides of the image, sizes of the result,
    groups, window, strides, dilations, and rows and columns before the image."""
    x = call.operands["x"]
    (n, c, h, w), (_, k, oh, ow) = image(x), image(call.output)
    strides = (*x.strides[:2], *(0, *x.strides[2:])[-2:])
    numbers = (
        n, h, w, c, *strides, oh, ow, k, call.attrs["groups"], *window_of(call), *pair(call, "strides"), *pair(call, "dilations"),
        *pads_before(call),
    )  # fmt: skip
    return ", ".join(map(str, numbers))


# ---------------------------------------------------------------- code
def _ends(call: Call, bias: bool, residual: bool, act: int, flags: int) -> str:
    """The last arguments of a C function: flags, activation, and the bits of its limits."""
    bits = [struct.unpack("<i", struct.pack("<f", call.attrs[o] if act == 2 else 0.0))[0] for o in ("lo", "hi")]
    return f"{BIAS * bias + RESIDUAL * residual + flags}, {act}, {bits[0]}, {bits[1]}"


def _operands(call: Call, bias: bool, residual: bool) -> list[str]:
    """The operands of a C function; absent ones are not read."""
    return [call.names[o] for o in ("x", "w", "b" if bias else "x", "r" if residual else "x", "out")]


def _addresses(call: Call, bias: bool, residual: bool) -> str:
    """The operands of a C function and its scratch memory."""
    return ", ".join((*_operands(call, bias, residual), call.names["scratch"]))


def _grouped_code(bias: bool, residual: bool, act: int) -> Callable[[Call], str]:
    def code(call: Call) -> str:
        ends = _ends(call, bias, residual, act, 0)
        return f"grouped_conv({_addresses(call, bias, residual)}, {direct_sizes(call)}, {ends})"

    identify(code, f"c.grouped_conv[{bias},{residual},{act}]")
    return code


def _line_of_zeros(call: Call) -> int:
    """Bytes of a zero for each channel of x."""
    return 4 * image(call.operands["x"])[1]


def _direct_code(bias: bool, residual: bool, act: int) -> Callable[[Call], str]:
    def code(call: Call) -> str:
        ends = _ends(call, bias, residual, act, COPIED * is_copied(call))
        return f"tiled_conv({_addresses(call, bias, residual)}, {direct_sizes(call)}, {ends})"

    identify(code, f"c.tiled_conv[{bias},{residual},{act}]")
    return code


def _direct_scratch(call: Call) -> int:
    """Bytes of the padded copy of x, or of a line of zeros."""
    n, c, _, _ = image(call.operands["x"])
    if not is_copied(call):
        return 4 * c
    (_, _, oh, ow), (kh, kw) = image(call.output), window_of(call)
    (step_h, step_w), (dil_h, _) = pair(call, "strides"), pair(call, "dilations")
    found: int = 4 * n * c * ((oh - 1) * step_h + (kh - 1) * dil_h + 1) * ((ow - 1) * step_w + kw)
    return found


def _block(call: Call) -> int:
    """Output tiles of a block of Winograd's convolution."""
    k, c, _, _ = extents(call.operands["w"])
    return max(LEAST_TILES, min(MOST_TILES, max(BLOCK_BYTES, 4 * 16 * c * k // 2) // (4 * 16 * (c + k))))


def _winograd_code(bias: bool, residual: bool, act: int) -> Callable[[Call], str]:
    def code(call: Call) -> str:
        _, k, oh, ow = extents(call.output)
        n, c, h, w = extents(call.operands["x"])
        sizes = ", ".join(map(str, (n, h, w, c, oh, ow, k, *call.attrs["pads"][:2], _block(call))))
        return f"tiled_winograd({_addresses(call, bias, residual)}, {sizes}, {_ends(call, bias, residual, act, 0)})"

    identify(code, f"c.tiled_winograd[{bias},{residual},{act}]")
    return code


def _winograd_scratch(call: Call) -> int:
    """Bytes of a block's transformed inputs and products."""
    k, c, _, _ = extents(call.operands["w"])
    return 4 * 16 * _block(call) * (c + k)


def _windows(call: Call, operands: str, window: tuple[int, ...], kind: int, ends: str) -> str:
    """A call of the C function of windows."""
    (n, c, h, w), (_, _, oh, ow) = image(call.operands["x"]), image(call.output)
    numbers = (n, h, w, c, oh, ow, *window, *pair(call, "strides"), *pair(call, "dilations"), *pads_before(call), kind)
    return f"tiled_windows({operands}, {', '.join(map(str, numbers))}, {ends})"


def _depthwise_code(bias: bool, residual: bool, act: int) -> Callable[[Call], str]:
    def code(call: Call) -> str:
        operands, ends = ", ".join(_operands(call, bias, residual)), _ends(call, bias, residual, act, 0)
        strides, (n, c, h, w), (_, _, oh, ow) = pair(call, "strides"), image(call.operands["x"]), image(call.output)
        if not by_ring(window_of(call), strides, pair(call, "dilations"), ow):
            return _windows(call, operands, window_of(call), 0, ends)
        numbers = (n, h, w, c, oh, ow, *window_of(call), *strides, *pads_before(call))
        return f"tiled_depthwise({operands}, {', '.join(map(str, numbers))}, {ends})"

    identify(code, f"c.depthwise_conv[{bias},{residual},{act}]")
    return code


def _pool_code(kind: int) -> Callable[[Call], str]:
    def code(call: Call) -> str:
        x, out = call.names["x"], call.names["out"]
        return _windows(call, f"{x}, {x}, {x}, {x}, {out}", call.attrs["kernel"], kind, "0, 0, 0, 0")

    identify(code, f"c.pool[{kind}]")
    return code


@identified("c.conv_packed")
def _pack_direct(call: Call) -> str:
    return f"conv_packed({call.names['w']}, {call.attrs['groups']})"


@dataclass(frozen=True)
class ConvolutionKind:
    """One convolution algorithm, from which library kernels with all epilogues are made.

    `applies`: predicate of the calls that it supports. `code`: function from (bias, residual, activation) to the
    kernel's code. `scratch`: bytes of scratch memory of a call. `prep`: packing of weights, by the helper function
    `helper`. `rate`: arithmetic throughput relative to that stated for a host (`costdb.keys.rates`), by which
    unmeasured kernels are priced. `version`: part of the keys of stored measurements. `source`: C functions and their
    text.
    """

    applies: Callable[[Call], bool]
    code: Callable[[bool, bool, int], Callable[[Call], str]]
    scratch: Callable[[Call], int] | None
    prep: Code
    helper: str
    rate: float
    version: str = VERSION
    source: Mapping[str, str] = field(default_factory=lambda: SOURCE)
    before_residual: tuple[str, ...] = ()


KINDS: Mapping[str, ConvolutionKind] = {
    "tiled_conv": ConvolutionKind(
        is_direct, _direct_code, _direct_scratch, _pack_direct, "conv_packed", 4.0, before_residual=BEFORE_RESIDUAL
    ),
    "winograd_conv": ConvolutionKind(
        is_winograd,
        _winograd_code,
        _winograd_scratch,
        "winograd_packed({w})",
        "winograd_packed",
        6.0,
        before_residual=BEFORE_RESIDUAL,
    ),
    "depthwise_conv": ConvolutionKind(
        is_depthwise, _depthwise_code, None, "depthwise_packed({w})", "depthwise_packed", 4.0, _version(*SOURCE)
    ),
    "grouped_conv": ConvolutionKind(
        is_grouped,
        _grouped_code,
        _line_of_zeros,
        _pack_direct,
        "conv_packed",
        4.0,
        _version("tiled_conv", "grouped_conv"),
        GROUPED_SOURCE,
    ),
}


# ---------------------------------------------------------------- rows
def _source(texts: Mapping[str, str]) -> Callable[[Call], Mapping[str, str]]:
    return lambda call: texts


def convolution_rows() -> list[LibraryKernel]:
    """Library kernels for all convolutions: each algorithm with and without bias, activation, and a residual that is
    added before or after the activation."""
    found: list[LibraryKernel] = []
    for (name, kind), (suffix, pattern, bias) in product(KINDS.items(), CONVOLUTIONS):
        more: dict[str, Any] = {
            "family": "conv", "dense": ("w", "b"), "layout": channels_last, "scratch": kind.scratch, "prep": {"w": kind.prep},
            "setup": ("address", "c_function", "c_library", "from_cache_line", kind.helper), "source": _source(kind.source), "rate": kind.rate,
            "version": kind.version, "reads_last": ("x",),
        }  # fmt: skip
        fits = both(usable, SINGLE, has_one_or_two_axes, filled, channel_bias, kind.applies, few_elements)
        for spelled, act in ACTIVATIONS.items():
            code = kind.code(bias, False, act)
            full = f"c.{name}{suffix}{ending(spelled)}"
            found.append(LibraryKernel(full, "c", spelled.format(pattern), code, applies=fits, **more))
        kept = {**more, "applies": both(fits, residual_fits_last), "inplace": ("r",)}
        left = "r + {}" if not bias else "r + ({})"
        for (form, side), spelled in product(
            (("{} + r", ""), (left, "_left")), (*AFTER_RESIDUAL, *kind.before_residual)
        ):
            code, last = kind.code(bias, True, ACTIVATIONS[spelled]), ending(spelled)
            behind = spelled in AFTER_RESIDUAL
            full = f"c.{name}{suffix}" + (f"_residual{side}{last}" if behind else f"{last}_residual{side}")
            whole = spelled.format(form.format(pattern)) if behind else form.format(spelled.format(pattern))
            found.append(LibraryKernel(full, "c", whole, code, **kept))
    return found


def pool_rows() -> list[LibraryKernel]:
    """Library kernels for maximum and average pooling."""
    attrs = "kernel=kernel, strides=strides, pads=pads, dilations=dilations"
    return [
        LibraryKernel(
            f"c.{name}", "c", f"{name}(x, {attrs})", _pool_code(kind), family="reduction", layout=channels_last, rate=4.0,
            applies=both(usable, SINGLE, filled, is_pool, few_elements), source=lambda call: SOURCE,
            setup=("address", "c_function", "c_library"), version=VERSION, reads_last=("x",),
        )
        for kind, name in ((1, "max_pool"), (2, "avg_pool"))
    ]  # fmt: skip


__all__ = [
    "HELPERS",
    "SOURCE",
    "conv_packed",
    "convolution_rows",
    "depthwise_packed",
    "from_cache_line",
    "pool_rows",
    "winograd_packed",
]
