"""The CUDA C++ backend: generated kernels (generate/template.py), compiled by NVRTC through cuda-core."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

from ...egraph.ir.graph import Tensor
from ..generate.generator import GpuGenerator
from ..generate.template import (
    CARRYING,
    COUNTING,
    EmitterBase,
    GeneratedKernel,
    Launch,
    Lowered,
    Schedule,
    split_axis,
    template_of,
)
from ..ir.kernel import PROBE, Kernel, Unfusable, if_fusable
from ..ir.precision import IEEE, THREE, Precision
from ..ir.tiling import Shape, shape_of
from ..lowering.split_reduction import split
from ..program.cuda_helpers import HELPERS
from .emit.kernel import emit, emit_joined
from .ranking import COUNT
from .schedules import FEW, joining, layout_of, legal, schedules
from .tiled_fp32.kernel import Tiles, emit_tiles
from .tiled_fp32.schedules import tile_schedules, tiles_fit
from .warp_specialized.kernel import Roles, emit_roles
from .warp_specialized.schedules import role_schedules, roles_fit
from .windows.kernel import Strip, emit_windows
from .windows.schedules import window_schedules, windows_fit


@dataclass
class CudaEmitter(EmitterBase):
    """Emitter of CUDA C++: one `__global__` function per kernel. In a split reduction the last block of each tile
    combines the partial results."""

    name: str = "nvrtc"
    version: str = "6"
    setup: tuple[str, ...] = ("CudaKernel", "counters")
    needs: tuple[str, ...] = ("torch", "cuda.core")
    searches: bool = True
    precisions: tuple[Precision, ...] = (THREE,)  # besides the dtype's own; for TF32 the library is faster

    def space(self, kernel: Kernel, shape: Shape, splits: bool) -> Sequence[Schedule]:
        """Candidate schedules, best guess first: see cuda/schedules.py, warp_specialized/schedules.py, tiled_fp32/schedules.py and
        windows/schedules.py."""
        if shape.kind == "windows" and (found := window_schedules(kernel, COUNT)):
            return found
        found = among(schedules(kernel, shape, splits=splits), role_schedules(kernel, shape, COUNT))
        return found[:COUNT] or tile_schedules(kernel, shape, COUNT, IEEE)

    def rounding(self, kernel: Kernel, shape: Shape, splits: bool, precision: Precision) -> Sequence[Schedule]:
        """Candidate schedules at a reduced precision of float32 products: see tiled_fp32/schedules.py."""
        return tile_schedules(kernel, shape, COUNT, precision)

    def fits(self, kernel: Kernel, shape: Shape, schedule: Schedule, splits: bool) -> bool:
        """Whether a schedule is legal: the kernel can be emitted and fits the limits on threads, registers and shared
        memory."""
        if "roles" in schedule:
            return roles_fit(kernel, shape, schedule)
        if "tiles" in schedule:
            return tiles_fit(kernel, shape, schedule)
        if "x" in schedule:
            return shape.kind == "windows" and windows_fit(kernel, schedule)
        if not legal(schedule, shape) or (schedule.get("split", 1) > 1 and not splits):
            return False
        return if_fusable(self.launches, Lowered(kernel, shape, ()), schedule, PROBE) is not None

    def launches(self, found: Lowered, schedule: Mapping[str, int], name: str) -> Sequence[Launch]:
        """The launch of a schedule. Emitters: emit/kernel.py, warp_specialized/kernel.py, tiled_fp32/kernel.py and windows/kernel.py."""
        if "roles" in schedule:
            return [emit_roles(found.kernel, found.shape, Roles.of(schedule), name)]
        if "tiles" in schedule:
            return [emit_tiles(found.kernel, found.shape, Tiles.of(schedule), name)]
        if "x" in schedule:
            strip = Strip(1) if name == PROBE else Strip(**schedule)  # either all box sizes can be emitted, or none
            return [emit_windows(found.kernel, strip, name)]
        layout = layout_of(found.kernel, found.shape, schedule)
        parts = schedule.get("split", 1)
        if parts == 1:
            return [emit(found.kernel, layout, name, found.shape)]
        if found.shape.joined:
            raise Unfusable("parts of rows that are written again")
        first, second = split(found.kernel, split_axis(found.shape), parts)
        own, after = shape_of(first), shape_of(second, products=False)
        spread = replace(
            own, rows=found.shape.rows, cols=found.shape.cols, batch=(first.axes[0], *found.shape.batch), joined={}
        )
        inner = tuple(dict.fromkeys(e.axis for e in second.reductions))
        after = replace(found.shape, joined={}, inner=inner, outer=inner, dots={})
        if len(spread.inner) != len(found.shape.inner):
            raise Unfusable("a reduction that only the joining half does")
        # same thread layout, with the axis names of the split kernel
        names = dict(zip((a.name for a in found.shape.inner), (a.name for a in spread.inner), strict=True))
        moved = replace(layout, dims={names.get(d, d): along for d, along in layout.dims.items()})
        return [emit_joined(first, second, (moved, joining(layout, after)), name, (spread, after))]


def among(first: Sequence[Schedule], second: Sequence[Schedule]) -> list[Schedule]:
    """Two ranked lists merged: two entries of the first, then one of the second."""
    threes = zip_longest(first[::2], first[1::2], second)
    return [schedule for three in threes for schedule in three if schedule is not None]


def generated(root: Tensor | Sequence[Tensor], transposed: Sequence[str] = ()) -> GeneratedKernel:
    """Template of a term over inputs, or of several (multi-output fusion); the weights named in `transposed` are
    transposed at load time."""
    return template_of(BACKEND.emitter, root, transposed)


class Cuda(GpuGenerator):
    """The CUDA C++ backend."""


BACKEND = Cuda(CudaEmitter(), {**HELPERS, "counters": COUNTING, "carried": CARRYING}, several=True, vectors=FEW)

__all__ = ["BACKEND", "Cuda", "CudaEmitter", "generated"]
