"""Places the operands of a kernel under check in shared memory, each between red zones (guard bytes that must stay
unchanged).

The checking process owns the file and checks its content; the child process that runs the kernel maps the same file. So
a kernel cannot access its reference, and its process reports only that the kernel has run.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...egraph.types import dtypes
from ...egraph.types.dims import concrete
from ...extract.model.kernel import Call, Operand

Array = np.ndarray[Any, Any]
ZONE = 4096  # bytes before and after each operand
ALIGNMENT = 256  # bytes
POISON = 0xFF  # content of inputs' red zones, and of outputs before the first run: NaN in every float dtype
OTHER_POISON = (
    0x5A  # content of outputs' red zones, and of outputs before the second run: finite, unlike a computed NaN
)


@dataclass(frozen=True)
class OperandSpot:
    """Location of an operand in the shared file: offset `start` and size in bytes, without its red zones."""

    start: int
    size: int


def places_of(call: Call) -> tuple[dict[str, OperandSpot], int]:
    """(location of each operand and output of a call by name, size of the file in bytes)."""
    found, end = {}, 0
    for name, operand in call.buffers.items():
        start, size = -(-(end + ZONE) // ALIGNMENT) * ALIGNMENT, nbytes(operand)  # zones do not overlap
        found[name] = OperandSpot(start, size)
        end = start + size + ZONE
    return found, max(end, mmap.PAGESIZE)


def nbytes(operand: Operand) -> int:
    """Bytes from an operand's first element to its last."""
    shape = concrete(operand.type.shape)
    span = 1 + sum((d - 1) * s for d, s in zip(shape, operand.strides)) if all(shape) else 0
    return span * dtypes.itemsize(operand.type.dtype)


def view_of(raw: Any, place: OperandSpot, operand: Operand) -> Array:
    """The operand as an array with its strides, over its bytes in `raw`, the buffer of the shared file."""
    kind = dtypes.numpy_dtype(operand.type.dtype)
    strides = [s * kind.itemsize for s in operand.strides]
    return np.ndarray(concrete(operand.type.shape), kind, raw, place.start, strides)


class SharedMemory:
    """A file in memory that a child process maps as well; removed with the object."""

    def __init__(self, size: int) -> None:
        folder = "/dev/shm" if os.path.isdir("/dev/shm") and os.access("/dev/shm", os.W_OK) else None
        number, self.path = tempfile.mkstemp(prefix="tensor_graphs-kernel-", dir=folder)
        os.ftruncate(number, size)
        self.size, self.raw = size, mmap.mmap(number, size)
        self.filled: Array = np.zeros(size, np.uint8)  # the content before a run, without the inputs' values
        os.close(number)

    def fill(self, call: Call, places: Mapping[str, OperandSpot], values: Mapping[str, Array]) -> None:
        """Fill the file with poison bytes, then the inputs with their values. `places`: of all operands and outputs."""
        raw = np.frombuffer(self.raw, np.uint8)
        for name, place in places.items():
            content = POISON if name in call.operands else OTHER_POISON
            raw[place.start - ZONE : place.start + place.size + ZONE] = content
            if name not in call.operands:
                raw[place.start : place.start + place.size] = POISON
        self.filled = raw.copy()
        for name, array in values.items():
            if array.size:
                view_of(self.raw, places[name], call.operands[name])[...] = array

    def poison(self, places: Sequence[OperandSpot], content: int) -> None:
        """Overwrite the operands at `places` with the byte `content`."""
        for place in places:
            np.frombuffer(self.raw, np.uint8)[place.start : place.start + place.size] = content

    def outside(self, places: Mapping[str, OperandSpot]) -> int | None:
        """Offset of the first byte outside of all operands (`places`) that has changed since `fill`; None if none
        has."""
        changed = np.frombuffer(self.raw, np.uint8) != self.filled
        for place in places.values():
            changed[place.start : place.start + place.size] = False
        return int(changed.argmax()) if changed.any() else None

    def bytes_of(self, place: OperandSpot) -> bytes:
        """Content of an operand's memory."""
        return self.raw[place.start : place.start + place.size]

    def close(self) -> None:
        """Remove the file. The memory mapping lives as long as an array over it."""
        os.unlink(self.path)


__all__ = ["OTHER_POISON", "POISON", "ZONE", "OperandSpot", "SharedMemory", "nbytes", "places_of", "view_of"]
