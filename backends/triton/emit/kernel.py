"""Emits Triton: writes a kernel of the IR and its tiling as the text of one `@triton.jit` function.

A program holds a tile of rows and columns. The emitter is made of parts that share a frame. Each part is given the
parts that it calls; there is one callback, from `TileValues` to the parts that emit loads and reductions
(`TileValues.makers`):

    spelling       tiles as text, spelling of operations
    frame          dimensions, scopes, known values
    index          Positions: positions and masks
    values         TileValues: elementwise expressions
    loads          TileLoads
    products       Products: tensor-core products
    loop_bounds    LoopBounds: ranges of loops
    loops          TileLoops: reductions
    row_stores     interleaved stores
    stores         TileStores: results
    grid           Grid: the program's tile

This module connects the parts, computes concatenated results in separate programs of the grid, and joins the partial
results of split reductions. Other strategies (ways to write kernels) replace some of the parts
(warp_specialized/attention.py).
"""

from __future__ import annotations

import math
from dataclasses import replace

from ...ir.expr import Expr, walk
from ...ir.index import Axis, index
from ...ir.kernel import Kernel, OutputStore
from ...ir.source_text import words
from ...ir.tiling import Shape, Tiling, padded, shape_of
from ...ir.unfusable import Unfusable
from ...lowering.split_reduction import counted_tiles
from ...machine import target
from .frame import TileFrame, TritonPart, TritonScope
from .grid import Grid
from .index import Positions
from .loads import TileLoads
from .loop_bounds import LoopBounds
from .loops import TileLoops
from .products import Products
from .spelling import TritonLaunch
from .stores import TileStores
from .values import TileValues

ONE_BY_ONE = 8  # parts up to which partial sums are added sequentially in each thread, all loads in flight


def emit(kernel: Kernel, tiling: Tiling, name: str, shape: Shape | None = None) -> TritonLaunch:
    """Emit the Triton source of `kernel` with the tile sizes `tiling`; returns its launch. Raises Unfusable if Triton
    cannot express the kernel.

    `name`: of the emitted function. `shape`: roles of the kernel's axes (row, column, batch, reduction), derived from
    the kernel if None.
    """
    return TileEmitter(TileFrame(kernel, tiling, name, shape or shape_of(kernel))).launch()


def emit_joined(first: Kernel, second: Kernel, tiling: Tiling, name: str, shape: Shape) -> TritonLaunch:
    """Emit a split reduction as one Triton function called `name`; returns its launch. Programs run `first`, which
    computes partial results; the last program of each tile to finish (known by an atomic counter) runs `second`, which
    combines them.

    `tiling`, `shape`: tile sizes and roles of the axes (row, column, batch, reduction) of the kernel before the split,
    whose tiles both kernels use. The buffer `counters` (int32, one per tile) is zero before and after the launch.
    """
    own = shape_of(first)
    spread = replace(own, rows=shape.rows, cols=shape.cols, batch=(first.axes[0], *shape.batch))
    parts = first.axes[0].size
    across = max(2, min(parts, (64 * target().warp * tiling.warps) // max(tiling.m * tiling.n, 1)))
    joining = replace(shape, joined={}, inner=reduction_axes(second), outer=reduction_axes(second), dots={})
    if joining.inner == () or shape.joined:
        raise Unfusable("no reductions in the combining kernel, or reductions over the output's columns")
    sums = all(e.value[0] == "sum" for e in second.reductions)
    limit = 1 if sums and parts <= ONE_BY_ONE else 1 << (across.bit_length() - 1)
    k = {a: min(padded(a.size), limit) if a.name == "parts" else padded(a.size) for a in joining.inner}
    # large partial results are not pipelined: stages of them would exceed shared memory
    join = replace(tiling, k=k, stages=1 if tiling.m * tiling.n > 4096 else tiling.stages)
    last = TileEmitter(TileFrame(second, join, name, joining))
    return TileEmitter(TileFrame(first, tiling, name, spread)).launch(last)


def reduction_axes(kernel: Kernel) -> tuple[Axis, ...]:
    """The axes that the reductions of `kernel` run over, each once, inner reductions first."""
    return tuple(dict.fromkeys(e.axis for e in kernel.reductions))


def _place(store: OutputStore) -> tuple[Axis, int, int] | None:
    """(axis, start, end) of the slice of an axis to which a store's guards restrict it; None for other guards."""
    low, high, axes = 0, -1, set[Axis]()
    for g in store.guards:
        a, b = g.args if g.op == "lt" else (g, g)
        axes |= g.axes
        if a.op == "const" and b.op == "index" and b.value.const == 0:
            low = a.value + 1
        elif b.op == "const" and a.op == "index" and a.value.const == 0:
            high = b.value
        else:
            return None
    if len(axes) != 1 or store.parts:
        return None
    (axis,) = axes
    simple = all(x.op != "index" or x.value == index(axis) for g in store.guards for x in g.args)
    return (axis, low, axis.size if high < 0 else high) if simple else None


class TileEmitter(TritonPart):
    """Emitter of a whole Triton kernel: connects the emitter's parts (positions, loads, loops, products, stores)."""

    def __init__(self, frame: TileFrame) -> None:
        super().__init__(frame)
        self.positions = Positions(frame)
        self.values = TileValues(frame, self.positions)
        self.loads = TileLoads(frame, self.positions, self.values)
        self.products = Products(frame, self.values, self.loads)
        bounds = LoopBounds(frame, self.positions, self.values)
        self.loops = TileLoops(frame, self.values, self.products, bounds)
        self.stores = TileStores(frame, self.positions, self.values)
        self.grid = Grid(frame, self.positions, bounds)
        self.values.makers = {"load": self.loads.load, "reduce": self.loops.reduction}

    def launch(self, last: TileEmitter | None = None) -> TritonLaunch:
        """Emit the kernel's function; returns its launch: text and number of programs.

        `last`: emitter of the code that the last program of each tile runs after its own part of a split reduction;
        None without one.
        """
        frame = self.frame
        s, t = self.shape, self.tiling
        tiles_m, tiles_n = -(-s.m // t.m), 1 if frame.n_loop else -(-s.n // t.n)
        batch = math.prod(a.size for a in s.batch)
        head = TritonScope(1, set())
        with self.inside(head):
            self.grid.program(tiles_m, tiles_n)
        groups = self._groups() if last is None else []
        for group, condition in groups:
            self.line(f"if {condition}:")
            frame.top.lines += group.as_part(self)
        if not groups:
            self.stores.results()
        body = [*head.lines, *frame.top.lines]
        names = [*self.kernel.buffers]
        if last is not None:
            body += last.as_last(tiles_m * tiles_n * batch, s.batch[0].size, frame.counter)
            names.append("counters")
        text = "\n".join(body)
        mentioned = words(text)
        args = [n for n in names if n in mentioned]
        early = bool(t.options.get("early"))
        begin = ["    begin_early()"] if early else []
        lines = ["@triton.jit", f"def {frame.name}({', '.join([*args, *frame.described])}):", *begin, *body]
        return TritonLaunch(
            frame.name,
            "\n".join(lines) + "\n",
            tiles_m * tiles_n * batch,
            tuple(args),
            t.warps,
            t.stages,
            tuple(frame.described.values()),
            early,
        )

    def _groups(self) -> list[tuple[TileEmitter, str]]:
        """(emitter, condition on the program) for each result if the results have separate programs.

        Empty if they share a product or a tile spans several of them.
        """
        frame, stores = self.frame, self.kernel.stores
        found = [_place(s) for s in stores]
        axes = {place[0] for place in found if place is not None}
        if len(stores) < 2 or None in found or len(axes) != 1 or frame.n_loop:
            return []
        products = [{e for e in walk([s.value]) if e in self.shape.dots} for s in stores]
        if not all(products) or len(frozenset().union(*products)) < sum(map(len, products)):
            return []
        (axis,) = axes
        dim = frame.dim_of(axis)
        alone = axis in self.shape.batch or (self.shape.rows if dim == "m" else self.shape.cols) == (axis,)
        step = 1 if axis in self.shape.batch else frame.block[dim]
        origin = axis.name if axis in self.shape.batch else self.positions.origin(axis, dim)
        groups = []
        for s, (_, low, high) in zip(stores, (place for place in found if place is not None), strict=True):
            if not alone or low % step or (high % step and high < axis.size):
                return []
            one = replace(self.kernel, stores=(self._unguarded(s),))
            shape = shape_of(one)
            if (shape.rows, shape.cols, shape.batch) != (self.shape.rows, self.shape.cols, self.shape.batch):
                return []
            ends = [f"{origin} >= {low}"] * (low > 0) + [f"{origin} < {high}"] * (high < axis.size)
            groups.append((TileEmitter(TileFrame(one, self.tiling, frame.name, shape)), " and ".join(ends)))
        return groups

    def _unguarded(self, store: OutputStore) -> OutputStore:
        """A store for programs whose tile lies in the store's guarded slice: without its guards, and without the same
        guards on its loads."""
        b = self.kernel.builder

        def change(e: Expr, args: tuple[Expr, ...]) -> Expr | None:
            if e.op != "load":
                return None
            kept = (g for g in args[len(e.value[2]) :] if g not in store.guards)
            return b.make("load", (*args[: len(e.value[2])], *kept), e.value, e.kind)

        (value,) = b.rebuilt([store.value], change)
        return replace(store, value=value, guards=())

    def as_part(self, whole: TileEmitter) -> list[str]:
        """Lines of Triton code that compute and store one of several results, to run in those programs of the grid to
        which the result's tiles are assigned.

        `whole`: emitter of the kernel with all results, with which this one shares variable numbers and tensor maps.
        """
        frame = self.frame
        own = whole.frame
        frame.counter, frame.boxes, frame.described = own.counter, own.boxes, own.described
        frame.top.indent = 2
        self.stores.results()
        own.counter = frame.counter
        return frame.top.lines

    def as_last(self, programs: int, parts: int, counter: int) -> list[str]:
        """Lines of Triton code with which the last program of a tile to finish combines the tile's partial results.

        `programs`: size of the grid; `parts`: programs per tile; `counter`: number from which fresh variable names
        count.
        """
        frame = self.frame
        tiles = counted_tiles(programs, parts)
        frame.counter, frame.fresh_loads = counter, True
        frame.top.indent = 2
        whole = [a for a in self.shape.inner if a not in frame.walked]
        for a in whole:
            self.line(f"{a.name} = tl.arange(0, {frame.block[a.name]})")
        self.stores.write_all(self.kernel.stores)
        tile = f"program % {tiles}" if tiles > 1 else "0"
        return [
            "    tl.debug_barrier()",
            f"    counter = counters + {tile}",
            "    done = tl.atomic_add(counter, 1)",
            f"    if done == {parts - 1}:",
            "        tl.store(counter, 0)",
            *frame.top.lines,
        ]
