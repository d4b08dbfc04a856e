"""Assigns TMA tensor maps to the operands and results of a warp-specialized GEMM."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

from ....egraph.types.dtypes import itemsize
from ...ir.index import Axis, Index
from ...ir.tensor_maps import Box, box, flattened
from ..emit.frame import CudaPart
from .frame import GemmFrame
from .parameters import DEPTH


class TensorMaps(CudaPart):
    """The tensor maps (TMA descriptors) of a kernel: parameters of its function, by operand and box (`names`)."""

    frame: GemmFrame

    def __init__(self, frame: GemmFrame) -> None:
        super().__init__(frame)
        self.names: dict[tuple[str, Box], str] = {}

    def box(self, at: Index, dtype: str, origins: Mapping[str, str]) -> tuple[Box, str] | None:
        """The TMA box of the tile that an index covers from `origins`, and its contiguous dimension.

        None if there is no such box.
        """
        frame = self.frame
        ones = {d: Axis(f"{d}_all", prod(a.size for a in frame.groups[d])) for d in origins}
        flat = flattened(at, ((frame.groups[d], one) for d, one in ones.items()))
        if flat is None:
            return None
        tiles = {one: (origins[d], frame.tile.get(d, DEPTH)) for d, one in ones.items()}
        ends = {one for d, one in ones.items() if frame.ragged(d)}
        found = box(flat, tiles, itemsize(dtype), lambda a: a.name, ends)
        if found is None or flat.axes - {*ones.values(), *self.shape.batch}:
            return None
        return found, next(d for d, one in ones.items() if one == found.axes[1])

    def parameter(self, operand: str, found: Box) -> str:
        """Name of the kernel parameter with an operand's tensor map; adds the parameter."""
        key = operand, replace(found, origin=("", ""))
        return self.names.setdefault(key, f"{operand}_box{len(self.names) or ''}")
