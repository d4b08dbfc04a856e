"""Declares the schedules (tuning parameters) of Triton and Gluon kernels (generate/schedule.py), one class per strategy
(way to write kernels)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ...generate.schedule import Domain, Schedule, SplitSchedule, declared, depths, flag, number, optional
from ...ir.precision import PRECISIONS
from ...ir.tiling import Shape, Tiling, padded

WARPS, STAGES, GROUP = 16, 8, 32  # maxima: warps of a program, pipeline stages, rows of tiles in a rasterization group
POWERS = Domain(powers=True)
TILING = ("m", "n", "k", "warps", "stages", "group", "precision")  # fields that a tiling has under their own names


@dataclass(frozen=True)
class TileSchedule(SplitSchedule):
    """Schedule (tuning parameters) of a general Triton kernel: a tile of rows and columns per program."""

    m: int = number("rows of a program's tile", POWERS)
    n: int = number("columns of a program's tile", POWERS)
    warps: int = number("warps of a program", Domain(1, WARPS, powers=True))
    stages: int = number("stages of software pipelining", Domain(1, STAGES, steps="step"))
    k: tuple[int, ...] = depths("tile size of each reduction axis, in the order of `Shape.inner`", POWERS)
    group: int | None = optional("rows of tiles rasterized together for L2 reuse", Domain(1, GROUP, powers=True))
    split: int | None = optional(
        "split-K factor over programs; partial results are combined by the last program (`join`) or a second kernel",
        Domain(2), drops=True, starts=2, companions=("join",), common=True,
    )  # fmt: skip
    join: bool = flag("the last program combines the parts of a split reduction", fixed=True, common=True)
    precision: int | None = optional(
        "input precision of float32 products, an index of `PRECISIONS`", Domain(1, len(PRECISIONS) - 1, steps="none")
    )
    boxes: bool = flag("loads use TMA tensor maps", form=True, common=True)
    inside: bool = flag("with `boxes`: loop-invariant loads are issued inside the loop, after its prologue copies")
    walk: bool = flag("one program iterates over all columns of the second product of back-to-back GEMMs")
    early: bool = flag("programmatic dependent launch", common=True)
    beside: bool = flag("interleaved results are joined in registers and written at once")

    def tile(self, shape: Shape) -> tuple[int, int]:
        """(rows, columns) of a program's tile; all columns with `walk`."""
        return self.m, shape.n if self.walk else self.n

    def tiling(self, shape: Shape) -> Tiling:
        """The tile sizes that this schedule gives a kernel whose axes have the roles `shape` (row, column, batch,
        reduction). Parameters that `Tiling` has no field for are its options."""
        options: dict[str, Any] = {"precision": PRECISIONS[self.precision or 0].name}
        names = [p.field for p in declared(type(self)).values() if p.field not in TILING]
        options |= {name: getattr(self, name) for name in names}
        return tiling_of(shape, self, self.group or 1, options)

    def cut(self, parts: int) -> TileSchedule:
        """This schedule with its reduction split into `parts`, whose results the last program of each tile to finish
        combines."""
        return self.but(split=parts, join=True) if parts > 1 else self


@dataclass(frozen=True)
class AttentionSchedule(Schedule):
    """Schedule (tuning parameters) of warp-specialized attention (warp_specialized/attention.py)."""

    tag: ClassVar[str] = "roles"
    warp_specialized: ClassVar[bool] = True

    m: int = number("rows of a program's tile, 64 per consumer warp group", POWERS)
    n: int = number("columns of the result", POWERS)
    warps: int = number("consumer warps, four per 64 rows", Domain(values=(4, 8, 12)))
    stages: int = number("key tiles, and value tiles, in shared memory", Domain(2, 8, steps="step"))
    k: tuple[int, ...] = depths("tile size of each reduction axis: the key tile, and whole widths", POWERS)
    pieces: int | None = optional(
        "2: a width of 96 is computed as 64 and 32; absent, and 1 in older stores: it is padded to 128",
        Domain(values=(1, 2), steps="none"),
    )  # fmt: skip

    @property
    def split_widths(self) -> bool:
        """Whether a head width that is not a power of two is computed as two powers of two, instead of being padded."""
        return self.pieces == 2

    def tiling(self, shape: Shape) -> Tiling:
        """The tile sizes that this schedule gives a kernel whose axes have the roles `shape` (row, column, batch,
        reduction)."""
        return tiling_of(shape, self, 1, {"pieces": self.split_widths})


@dataclass(frozen=True)
class ConvolutionSchedule(Schedule):
    """Schedule (tuning parameters) of warp-specialized convolution (warp_specialized/convolution.py)."""

    tag: ClassVar[str] = "roles"
    warp_specialized: ClassVar[bool] = True

    m: int = number("rows of a program's tile: positions or filters", Domain())
    n: int = number("columns of a program's tile: filters or positions", Domain())
    warps: int = number("consumer warps, four per 64 positions", Domain(values=(4, 8)))
    stages: int = number("pipeline depth in steps of K", Domain(2, 6, steps="step"))
    tall: int = number("positions per program", Domain(values=(64, 128)))
    wide: int = number("filters of the first filter tile of a program", POWERS)
    k: tuple[int, ...] = depths("elements of K in a step", POWERS)
    more: int | None = optional("filters of a second, narrower filter tile", POWERS)


def tiling_of(shape: Shape, s: TileSchedule | AttentionSchedule, group: int, options: dict[str, Any]) -> Tiling:
    """The tile sizes of the schedule `s` for a kernel whose axes have the roles `shape` (row, column, batch,
    reduction), each at most the size of its axis rounded up to a power of two; `group`: rows of tiles rasterized
    together for L2 reuse; `options`: other schedule parameters by name."""
    sizes = [*s.k, *(padded(a.size) for a in shape.inner[len(s.k) :])]
    k = {a: min(size, padded(a.size)) for a, size in zip(shape.inner, sizes)}
    m, n = s.m if shape.rows else 1, s.n if shape.cols else 1
    return Tiling(m, n, k, s.warps, s.stages, group, options)


#: Schedules with their ranks: estimates of the time, of which only the order counts.
Ranked = Iterator[tuple[TileSchedule, float]]


def block_sizes(size: int, options: Sequence[int], least: int = 1) -> list[int]:
    """The `options` for a tile's size along an axis of `size` elements: at least `least`, and at most `size` rounded up
    to a power of two; one value if there are none."""
    limit = max(padded(size), least)
    kept = [o for o in options if least <= o <= limit]
    return kept or [limit if limit < options[0] else options[0]]


__all__ = ["AttentionSchedule", "ConvolutionSchedule", "Ranked", "TileSchedule", "block_sizes"]
