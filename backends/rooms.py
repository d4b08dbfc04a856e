"""Scratch memory of NumPy's kernels: arrays by name that a call gets beside its operands, so that it allocates none.

The memory plan places all arrays of a call as one piece (`Template.scratch`); the emitted source makes them once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

from ..egraph import dtypes
from ..extract.kernel import Call, code_identity, identify
from .emit_text import dtype_text, literal

ALIGNMENT = 64
Room = tuple[tuple[int, ...], str]  # shape and dtype of an array of the call's own
Rooms = Mapping[str, "Room | str"]  # a text names another room, an operand or "out", which serves as well


def wide(dtype: str) -> str:
    """The dtype in which floats of a dtype are computed: halves in float32."""
    return "float32" if dtypes.itemsize(dtype) == 2 and dtypes.is_float(dtype) else dtype


def shape_of(call: Call, name: str) -> tuple[int, ...]:
    """The sizes of an operand, or of "out"; they may be expressions, which are written as such."""
    return (call.output if name == "out" else call.operands[name]).type.shape  # type: ignore[return-value]


def one_at(shape: Sequence[int], axes: Sequence[int]) -> tuple[int, ...]:
    """The shape with size 1 along some axes: what is left of a reduction."""
    return tuple(1 if i in [a % len(shape) for a in axes] else d for i, d in enumerate(shape))


def work(call: Call) -> Room | str:
    """Room for the result in the dtype in which it is computed: the output itself, if that has it."""
    kind = call.output.type.dtype
    return "out" if wide(kind) == kind else (shape_of(call, "out"), wide(kind))


def placed(rooms: Rooms) -> tuple[dict[str, tuple[int, Room]], int]:
    """The arrays that need memory of their own with their offsets, and the bytes in all."""
    found, end = {}, 0
    for name, room in rooms.items():
        if not isinstance(room, str):
            found[name] = end, room
            end += -(-prod(room[0]) * dtypes.itemsize(room[1]) // ALIGNMENT) * ALIGNMENT
    return found, end


def with_rooms(text: str | Callable[[Call], str], rooms: Callable[[Call], Rooms]) -> dict[str, Any]:
    """`code` and `scratch` of a template whose code, a format string, names operands, attributes, `out` and rooms."""

    def code(call: Call) -> str:
        wanted = rooms(call)
        names = dict(call.names)
        for name, (offset, (shape, dtype)) in placed(wanted)[0].items():
            names[name] = f"place({names['scratch']}, {offset}, {literal(tuple(shape))}, {dtype_text(dtype)})"
        names |= {name: names[room] for name, room in wanted.items() if isinstance(room, str)}
        spelled = text if isinstance(text, str) else text(call)
        return spelled.format(**{k: literal(v) for k, v in call.attrs.items()}, **names)

    identify(code, f"rooms.with_rooms[{code_identity(text).removeprefix('numpy.')}]")
    return {"code": code, "scratch": lambda call: placed(rooms(call))[1]}


__all__ = ["Room", "Rooms", "one_at", "placed", "shape_of", "wide", "with_rooms", "work"]
