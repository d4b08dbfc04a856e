"""Declares library kernels in C for values of bytes with scales and zero points: rounding to bytes and back, sums and
products of two values, functions of one value by a table of 256 bytes, softmax and layer norm.

Generated kernels contain their scales as constants, so that each layer has kernels of its own to compile and to
measure. These read scales from memory: equal layers share a kernel. Arithmetic is that of the model as written.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from math import prod

from ...egraph.patterns.pattern import variables
from ...egraph.patterns.pattern_parser import parse_terms
from ...extract.model.kernel import Call, Operand, Strides, contiguous
from ...extract.model.library_kernel import LibraryKernel, identify
from ..library.torch_calls import both, channels_last, extents, filled, is_channels_last
from .byte_values_text import BYTE_VALUES, LONGEST_ROW
from .call_facts import few_elements
from .linear_products import known_sizes

BYTES = ("uint8", "int8")
X_SIGNED, R_SIGNED, OUT_SIGNED, FLOAT_X, FLOAT_OUT = (1 << i for i in range(5))  # flags of the C functions
_X, _R = "dequantize(x, a, z)", "dequantize(r, u, v)"
#: Function of one value, in the order of their numbers in C: pattern.
MAPS: Mapping[str, str] = {
    "scaled": "{}", "product": "{} * m", "relu": "relu({})", "clip": "clip({}, lo=lo, hi=hi)", "gelu": "gelu({})",
    "gelu_tanh": "gelu_tanh({})", "silu": "silu({})", "sigmoid": "sigmoid({})", "tanh": "tanh({})",
    "hard_swish": "hard_swish({})",
}  # fmt: skip
LEAST_MAPPED = 1024  # elements from which a table of 256 bytes is worth making


# ---------------------------------------------------------------- conditions and layouts
def _dtypes(call: Call) -> bool:
    """Condition on calls: values are bytes with zero points of their dtypes, or float32; scales and zero points are one
    number each."""
    kinds = {name: o.type.dtype for name, o in call.operands.items()} | {"out": call.output.type.dtype}
    if "o" not in kinds and "z" not in kinds:
        return True
    pairs = [(value, zero) for value, zero in (("x", "z"), ("r", "v"), ("out", "o")) if zero in kinds]
    floats = [n for n in kinds if n in "ausmgbh"] + [v for v in ("x", "out") if not any(v == p for p, _ in pairs)]
    single = all(prod(extents(o)) == 1 for n, o in call.operands.items() if n in "azuvsom")
    return (
        single
        and all(kinds[v] in BYTES and kinds[v] == kinds[z] for v, z in pairs)
        and all(kinds[n] == "float32" for n in floats)
    )


def _last(call: Call) -> bool:
    """Whether x is a channels-last image that is not row-major, too."""
    x = call.operands["x"]
    return not x.dense and is_channels_last(x)


def _as_x(call: Call) -> Strides:
    """Strides of results that lie in memory as x does."""
    return channels_last(call) if _last(call) else contiguous(extents(call.output))


def _alike(call: Call) -> bool:
    """Condition on calls: values are row-major, or channels-last images; their shapes are the result's."""
    values = [call.operands[n] for n in "xr" if n in call.operands]
    lie: Callable[[Operand], bool] = is_channels_last if _last(call) else lambda o: o.dense
    return all(o.type.shape == call.output.type.shape and lie(o) for o in values)


def _lined(call: Call) -> bool:
    """Condition on calls: b has one number for each index of x's innermost axis."""
    b, x = extents(call.operands["b"]), extents(call.operands["x"])
    axis = 1 if _last(call) else len(x) - 1
    return x == extents(call.output) and prod(b) == b[axis] == x[axis]


def _row_major(call: Call) -> bool:
    """Condition on calls: x is row-major and has the result's shape; its rows are not too long."""
    x = call.operands["x"]
    return x.dense and x.type.shape == call.output.type.shape and extents(x)[-1] <= LONGEST_ROW


def _whole(call: Call) -> bool:
    """Condition on calls: x is float32 without gaps in memory, and the range is that of all its elements."""
    x = call.operands["x"]
    return x.type.dtype == "float32" and (x.dense or is_channels_last(x)) and prod(extents(call.output)) == 1


def _turned(call: Call) -> bool:
    """Condition on calls: x is a row-major image of several channels."""
    x = call.operands["x"]
    return x.type.rank in (3, 4) and x.dense and not is_channels_last(x) and x.type.shape == call.output.type.shape


# ---------------------------------------------------------------- code
def _bits(value: float) -> int:
    return int(struct.unpack("<i", struct.pack("<f", value))[0])


def _flags(call: Call) -> int:
    kinds = {n: o.type.dtype for n, o in call.operands.items()}
    signed = X_SIGNED * (kinds["x"] == "int8") + R_SIGNED * (kinds.get("r") == "int8")
    floats = FLOAT_X * (kinds["x"] == "float32") + FLOAT_OUT * (call.output.type.dtype == "float32")
    return signed + OUT_SIGNED * (call.output.type.dtype == "int8") + floats


def _names(call: Call, operands: str) -> str:
    """Source of the operands, x for absent ones, and of the result."""
    return ", ".join([*(call.names.get(o, call.names["x"]) for o in operands), call.names["out"]])


def _elements(call: Call) -> int:
    return int(prod(extents(call.output)))


def _flat(call: Call) -> str:
    return f"bytes_flat({_names(call, 'xazso')}, {_elements(call)}, {_flags(call)})"


def _to_last(call: Call) -> str:
    n, c, *space = extents(call.operands["x"])
    return f"bytes_to_last({_names(call, 'xso')}, {n}, {c}, {prod(space)}, {_flags(call)})"


def _range(call: Call) -> str:
    elements = prod(extents(call.operands["x"]))
    return f"bytes_range({call.names['x']}, {call.names['out']}, {call.names['out1']}, {elements})"


def _two(times: int) -> Callable[[Call], str]:
    return lambda call: f"bytes_two({_names(call, 'xazruvso')}, {_elements(call)}, {times}, {_flags(call)})"


def _line(times: int) -> Callable[[Call], str]:
    def code(call: Call) -> str:
        columns = prod(extents(call.operands["b"]))
        return f"bytes_line({_names(call, 'xazbso')}, {_elements(call) // columns}, {columns}, {times}, {_flags(call)})"

    return code


def _mapped(number: int) -> Callable[[Call], str]:
    def code(call: Call) -> str:
        limits = [_bits(call.attrs.get(a, 0.0)) for a in ("lo", "hi")]
        return f"bytes_mapped({_names(call, 'xazmso')}, {_elements(call)}, {number}, {limits[0]}, {limits[1]}, {_flags(call)})"

    return code


def _softmax(call: Call) -> str:
    columns = extents(call.output)[-1]
    return f"bytes_softmax({_names(call, 'xazso')}, {_elements(call) // columns}, {columns}, {_flags(call)})"


def _norm(call: Call) -> str:
    columns = extents(call.output)[-1]
    return f"bytes_layer_norm({_names(call, 'xazghso')}, {_elements(call) // columns}, {columns}, {_bits(call.attrs['eps'])}, {_flags(call)})"


# ---------------------------------------------------------------- rows
@dataclass(frozen=True)
class ByteKernel:
    """A kernel on bytes: its pattern, the function that writes its call, a condition, the layout of results, and its
    family."""

    pattern: str
    code: Callable[[Call], str]
    applies: Callable[[Call], bool]
    layout: Callable[[Call], Strides] | None = _as_x
    family: str = "pointwise"


def _rows_of(call: Call) -> bool:
    return call.attrs["axis"] == call.output.type.rank - 1 and _row_major(call)


def _worth(call: Call) -> bool:
    return _alike(call) and _elements(call) >= LEAST_MAPPED


_LOW, _HIGH = "minimum(min(x, axes=k), 0.0)", "maximum(max(x, axes=k), 0.0)"
_STEP = f"div(sub({_HIGH}, {_LOW}), 255.0)"
#: Scale of unsigned bytes for a value's range (ONNX's DynamicQuantizeLinear), and its zero point.
SCALE = f"where(eq({_STEP}, 0.0), {1.0 / 255.0!r}, {_STEP})"
ZERO = f"cast(minimum(maximum(round(div(neg({_LOW}), {SCALE})), 0.0), 255.0), dtype='uint8')"
_NORM = "layer_norm({}, g, h, eps=eps)"
KERNELS: Mapping[str, ByteKernel] = {
    "c.bytes_quantize": ByteKernel("quantize(x, s, o)", _flat, _alike),
    "c.bytes_quantize_to_last": ByteKernel("quantize(x, s, o)", _to_last, _turned, channels_last),
    "c.bytes_range": ByteKernel(f"{SCALE}; {ZERO}", _range, _whole, None, "reduction"),
    "c.bytes_dequantize": ByteKernel(_X, _flat, _alike),
    "c.bytes_add": ByteKernel(f"quantize({_X} + {_R}, s, o)", _two(0), _alike),
    "c.bytes_mul": ByteKernel(f"quantize({_X} * {_R}, s, o)", _two(1), _alike),
    "c.bytes_add_line": ByteKernel(f"quantize({_X} + b, s, o)", _line(0), _lined),
    "c.bytes_mul_line": ByteKernel(f"quantize({_X} * b, s, o)", _line(1), _lined),
    **{
        f"c.bytes_{name}": ByteKernel(f"quantize({text.format(_X)}, s, o)", _mapped(i), _worth)
        for i, (name, text) in enumerate(MAPS.items())
    },
    "c.bytes_softmax": ByteKernel(f"quantize(softmax({_X}, axis=axis), s, o)", _softmax, _rows_of, None, "reduction"),
    "c.bytes_layer_norm": ByteKernel(f"quantize({_NORM.format(_X)}, s, o)", _norm, _row_major, None, "reduction"),
    "c.bytes_layer_norm_in": ByteKernel(_NORM.format(_X), _norm, _row_major, None, "reduction"),
    "c.bytes_layer_norm_out": ByteKernel(f"quantize({_NORM.format('x')}, s, o)", _norm, _row_major, None, "reduction"),
}


def _row(name: str, kernel: ByteKernel) -> LibraryKernel:
    given = set(variables(parse_terms(kernel.pattern)[0]))
    return LibraryKernel(
        name, "c", kernel.pattern, identify(kernel.code, name), family=kernel.family, layout=kernel.layout,
        dense=tuple(o for o in "bgh" if o in given), rate=4.0, source=lambda call: BYTE_VALUES,
        version=VERSION, setup=("address", "c_function", "c_library"),
        applies=both(filled, known_sizes, few_elements, _dtypes, kernel.applies),
    )  # fmt: skip


VERSION = blake2b("".join(BYTE_VALUES.values()).encode(), digest_size=4).hexdigest()
"""Version of kernels in keys of stored measurements: other text has other times."""


def byte_value_rows() -> list[LibraryKernel]:
    """Library kernels on values of bytes that are no products: see the head of the module."""
    return [_row(name, kernel) for name, kernel in KERNELS.items()]


__all__ = ["byte_value_rows"]
