"""Defines the scratch buffers of NumPy kernels: named temporary arrays, so that a call allocates nothing.

The memory plan places all scratch buffers of a call in one block (`LibraryKernel.scratch`); emitted source makes the
arrays once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

from ...egraph.types import dtypes
from ...extract.model.kernel import Call
from ...extract.model.library_kernel import code_identity, identify
from ..ir.source_text import dtype_text, literal

ALIGNMENT = 64
ScratchBuffer = tuple[tuple[int, ...], str]  # shape and dtype of a scratch buffer
ScratchBuffers = Mapping[
    str, "ScratchBuffer | str"
]  # name -> buffer, or the name of another buffer, operand or "out" to alias


def wide(dtype: str) -> str:
    """Compute dtype of a float dtype: float32 for 16-bit floats, else the dtype itself."""
    return "float32" if dtypes.itemsize(dtype) == 2 and dtypes.is_float(dtype) else dtype


def compute_dtype(call: Call) -> str:
    """Compute dtype of a call: that of its result, or float32 for 16-bit floats."""
    return wide(call.output.type.dtype)


def shape_of(call: Call, name: str) -> tuple[int, ...]:
    """Shape of the operand `name`, or of the output for "out"; sizes may be expressions."""
    return (call.output if name == "out" else call.operands[name]).type.shape  # type: ignore[return-value]


def reduced_shape(shape: Sequence[int], axes: Sequence[int]) -> tuple[int, ...]:
    """A shape with size 1 along `axes`: that of a reduction with kept dimensions."""
    return tuple(1 if i in [a % len(shape) for a in axes] else d for i, d in enumerate(shape))


def work(call: Call) -> ScratchBuffer | str:
    """Scratch buffer (shape, dtype) in which a kernel computes its result in the compute dtype; "out", the result
    itself, if the compute dtype equals the output dtype."""
    kind = call.output.type.dtype
    return "out" if wide(kind) == kind else (shape_of(call, "out"), wide(kind))


def placed(buffers: ScratchBuffers) -> tuple[dict[str, tuple[int, ScratchBuffer]], int]:
    """Place a kernel's scratch buffers in one block; returns (buffer name -> (offset in bytes, buffer), total bytes).

    Buffers that use another buffer's memory are left out.
    """
    found, end = {}, 0
    for name, buffer in buffers.items():
        if not isinstance(buffer, str):
            found[name] = end, buffer
            end += -(-prod(buffer[0]) * dtypes.itemsize(buffer[1]) // ALIGNMENT) * ALIGNMENT
    return found, end


def with_scratch(text: str | Callable[[Call], str], buffers_of: Callable[[Call], ScratchBuffers]) -> dict[str, Any]:
    """Make the arguments `code` and `scratch` of a `LibraryKernel` whose code uses scratch buffers.

    `text`: format string over operands, attributes, `out` and scratch buffers, or a function from a call to one.
    `buffers_of`: function from a call to its scratch buffers, name -> (shape, dtype), or the name of another buffer,
    operand or "out" whose memory is used.
    """

    def code(call: Call) -> str:
        wanted = buffers_of(call)
        names = dict(call.names)
        for name, (offset, (shape, dtype)) in placed(wanted)[0].items():
            names[name] = f"place({names['scratch']}, {offset}, {literal(tuple(shape))}, {dtype_text(dtype)})"
        names |= {name: names[other] for name, other in wanted.items() if isinstance(other, str)}
        spelled = text if isinstance(text, str) else text(call)
        return spelled.format(**{k: literal(v) for k, v in call.attrs.items()}, **names)

    identify(code, f"rooms.with_rooms[{code_identity(text).removeprefix('numpy.')}]")
    return {"code": code, "scratch": lambda call: placed(buffers_of(call))[1]}


__all__ = ["ScratchBuffer", "ScratchBuffers", "placed", "reduced_shape", "shape_of", "wide", "with_scratch", "work"]
