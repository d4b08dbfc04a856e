"""The Triton emitter: a kernel of the IR and its tiling as the text of one `@triton.jit` function.

A program holds a tile of rows and columns. This module chooses the program's tile, emits stores, and joins the partial
results of split reductions. Each of the modules below depends only on those above it:

    triton_text      tiles as text, spelling of operations
    triton_frame     dimensions, scopes, known values
    triton_index     positions and masks
    triton_values    elementwise expressions
    triton_loads     loads
    triton_products  tensor-core products
    triton_loops     reductions
    triton_rows      interleaved stores
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ...ir.index import WIDE, Axis, index
from ...ir.kernel import Expr, Kernel, OutputStore, Unfusable, walk
from ...ir.tiling import Shape, Tiling, padded, shape_of
from ...lowering.split_reduction import counted
from .frame import TritonScope
from .loops import Loops
from .row_stores import Row, joined, rows
from .spelling import TRITON, Launch, Tile, names_it

EARLY = 32  # number of loads up to which all are issued at once
AHEAD = 96  # elements per thread in flight if there are more: no load is moved across a store, which might alias
ONE_BY_ONE = 8  # parts up to which partial sums are added sequentially in each thread, all loads in flight


def emit(kernel: Kernel, tiling: Tiling, name: str, shape: Shape | None = None) -> Launch:
    """The launch of a kernel with given tiles. Unfusable if Triton cannot express the kernel."""
    return TritonFunction(kernel, tiling, name, shape or shape_of(kernel)).launch()


def emit_joined(first: Kernel, second: Kernel, tiling: Tiling, name: str, shape: Shape) -> Launch:
    """One launch of a split reduction: the last program of each tile (by an atomic counter) combines the partial
    results.

    `shape` is that of the kernel before the split; both halves share its tiles. The buffer `counters` (int32, one per
    tile) is zero before and after the kernel.
    """
    own = shape_of(first)
    spread = replace(own, rows=shape.rows, cols=shape.cols, batch=(first.axes[0], *shape.batch))
    parts = first.axes[0].size
    across = max(2, min(parts, (64 * 32 * tiling.warps) // max(tiling.m * tiling.n, 1)))
    joining = replace(shape, joined={}, inner=second_axes(second), outer=second_axes(second), dots={})
    if joining.inner == () or shape.joined:
        raise Unfusable("nothing to join by tiles")
    sums = all(e.value[0] == "sum" for e in second.reductions)
    limit = 1 if sums and parts <= ONE_BY_ONE else 1 << (across.bit_length() - 1)
    k = {a: min(padded(a.size), limit) if a.name == "parts" else padded(a.size) for a in joining.inner}
    # large partial results are not pipelined: stages of them would exceed shared memory
    join = replace(tiling, k=k, stages=1 if tiling.m * tiling.n > 4096 else tiling.stages)
    return TritonFunction(first, tiling, name, spread).launch(TritonFunction(second, join, name, joining))


def fresh_in(stores: Sequence[OutputStore]) -> list[list[Expr]]:
    """The expressions of each store that no earlier store has, operands first."""
    seen: set[Expr] = set()
    found: list[list[Expr]] = []
    for s in stores:
        found.append(walk(s.exprs, seen))
        seen.update(found[-1])
    return found


def second_axes(kernel: Kernel) -> tuple[Axis, ...]:
    """The reduction axes of a kernel, without duplicates."""
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


class TritonFunction(Loops):
    """Emitter of a whole kernel."""

    def launch(self, last: TritonFunction | None = None) -> Launch:
        """The function's text and its grid. `last` emits what the last program of each tile does after its own part."""
        s, t = self.shape, self.tiling
        tiles_m, tiles_n = -(-s.m // t.m), 1 if self.n_loop else -(-s.n // t.n)
        batch = math.prod(a.size for a in s.batch)
        head = TritonScope(1, set())
        with self.inside(head):
            self._program(tiles_m, tiles_n)
        groups = self._groups() if last is None else []
        for group, condition in groups:
            self.line(f"if {condition}:")
            self.top.lines += group.as_part(self)
        if not groups:
            self.results()
        body = [*head.lines, *self.top.lines]
        names = [*self.kernel.buffers]
        if last is not None:
            body += last.as_last(tiles_m * tiles_n * batch, s.batch[0].size, self.counter)
            names.append("counters")
        args = [n for n in names if any(names_it(line, n) for line in body)]
        early = bool(t.options.get("early"))
        begin = ["    begin_early()"] if early else []
        lines = ["@triton.jit", f"def {self.name}({', '.join([*args, *self.described])}):", *begin, *body]
        return Launch(
            self.name,
            "\n".join(lines) + "\n",
            tiles_m * tiles_n * batch,
            tuple(args),
            t.warps,
            t.stages,
            tuple(self.described.values()),
            early,
        )

    def results(self) -> None:
        """Emit all results of the program's tile."""
        if self.walked or self.n_loop:
            self._stores(self.kernel.stores)
            return
        abreast = {s: r for r in rows(self.kernel) for s in r.stores} if self.tiling.options.get("beside") else {}
        waiting = Counter(id(r) for r in abreast.values())
        for store, loads in zip(self.kernel.stores, self._ahead(), strict=True):
            for e in loads:
                self.value(e)
            row = abreast.get(store)
            if row is None:
                self._store(store)
                continue
            self._written(store)
            waiting[id(row)] -= 1
            if not waiting[id(row)]:
                self._store_row(row)

    def _ahead(self) -> Iterator[list[Expr]]:
        """Loads to issue before each store: all of them, before the first use of a value; if there are many, the next
        ones that registers can hold."""
        fresh = [[e for e in exprs if self._loads(e)] for exprs in fresh_in(self.kernel.stores)]
        sizes = [sum(map(self._each, loads)) for loads in fresh]
        room = math.inf if sum(map(len, fresh)) <= EARLY else AHEAD
        begun, waiting = 0, 0.0
        for n in range(len(fresh)):
            loads: list[Expr] = []
            while begun < len(fresh) and (begun <= n or waiting + sizes[begun] <= room):
                loads += fresh[begun]
                waiting += sizes[begun]
                begun += 1
            yield loads
            waiting -= sizes[n]

    def _loads(self, e: Expr) -> bool:
        """Whether a load can be issued at the start of the kernel."""
        return e.op == "load" and e.axes <= self.top.bound and all(a.op != "load" for a in e.args)

    def _each(self, load: Expr) -> float:
        """Elements of a load per thread."""
        dims = {self.dim_of(a) for a in load.axes if a not in self.shape.batch}
        return max(1.0, math.prod(self.block[d] for d in dims) / (32 * self.tiling.warps))

    # --- concatenated results, each in programs of its own
    def _groups(self) -> list[tuple[TritonFunction, str]]:
        """(emitter, condition on the program) for each result if the results have separate programs; empty if they
        share a product or a tile spans several of them."""
        stores = self.kernel.stores
        found = [_place(s) for s in stores]
        axes = {place[0] for place in found if place is not None}
        if len(stores) < 2 or None in found or len(axes) != 1 or self.n_loop:
            return []
        products = [{e for e in walk([s.value]) if e in self.shape.dots} for s in stores]
        if not all(products) or len(frozenset().union(*products)) < sum(map(len, products)):
            return []
        (axis,) = axes
        dim = self.dim_of(axis)
        alone = axis in self.shape.batch or (self.shape.rows if dim == "m" else self.shape.cols) == (axis,)
        step = 1 if axis in self.shape.batch else self.block[dim]
        origin = axis.name if axis in self.shape.batch else self.origin(axis, dim)
        groups = []
        for s, (_, low, high) in zip(stores, (place for place in found if place is not None), strict=True):
            if not alone or low % step or (high % step and high < axis.size):
                return []
            one = replace(self.kernel, stores=(self._unguarded(s),))
            shape = shape_of(one)
            if (shape.rows, shape.cols, shape.batch) != (self.shape.rows, self.shape.cols, self.shape.batch):
                return []
            ends = [f"{origin} >= {low}"] * (low > 0) + [f"{origin} < {high}"] * (high < axis.size)
            groups.append((TritonFunction(one, self.tiling, self.name, shape), " and ".join(ends)))
        return groups

    def _unguarded(self, store: OutputStore) -> OutputStore:
        """A store inside its guarded slice: without its guards and the same guards of its loads."""
        b = self.kernel.builder

        def change(e: Expr, args: tuple[Expr, ...]) -> Expr | None:
            if e.op != "load":
                return None
            kept = (g for g in args[len(e.value[2]) :] if g not in store.guards)
            return b.make("load", (*args[: len(e.value[2])], *kept), e.value, e.kind)

        (value,) = b.rebuilt([store.value], change)
        return replace(store, value=value, guards=())

    def as_part(self, whole: TritonFunction) -> list[str]:
        """The lines that compute one of several results, in the programs with its tiles."""
        self.counter, self.boxes, self.described = whole.counter, whole.boxes, whole.described
        self.top.indent = 2
        self.results()
        whole.counter = self.counter
        return self.top.lines

    def as_last(self, programs: int, parts: int, counter: int) -> list[str]:
        """The lines that combine a tile's partial results in its last program."""
        tiles = counted(programs, parts)
        self.counter, self.fresh_loads = counter, True
        self.top.indent = 2
        whole = [a for a in self.shape.inner if a not in self.walked]
        for a in whole:
            self.line(f"{a.name} = tl.arange(0, {self.block[a.name]})")
        self._stores(self.kernel.stores)
        tile = f"program % {tiles}" if tiles > 1 else "0"
        return [
            "    tl.debug_barrier()",
            f"    counter = counters + {tile}",
            "    done = tl.atomic_add(counter, 1)",
            f"    if done == {parts - 1}:",
            "        tl.store(counter, 0)",
            *self.top.lines,
        ]

    def _program(self, tiles_m: int, tiles_n: int) -> None:
        """Emit the program's tile, and the indices of rows, columns and whole reduction axes."""
        s = self.shape
        if tiles_m * tiles_n * math.prod(a.size for a in s.batch) > 1:
            self.line("program = tl.program_id(0)")
        self.place(tiles_m, tiles_n)
        for dim, count, group in (("m", tiles_m, s.rows), ("n", tiles_n, s.cols)):
            if group and not (dim == "n" and self.n_loop):
                base = f"tile_{dim} * {self.block[dim]} + " if count > 1 else ""
                self.line(f"{dim} = {base}tl.arange(0, {self.block[dim]})")
                self._group(dim, group)
        for a in s.inner:
            if a not in self.walked and a not in self.joined:
                self.line(f"{a.name} = tl.arange(0, {self.block[a.name]})")

    def place(self, tiles_m: int, tiles_n: int) -> None:
        """Emit the program's tile coordinates and the values of batch axes. Tiles are rasterized in groups of rows for
        L2 reuse."""
        s, t = self.shape, self.tiling
        batch = math.prod(a.size for a in s.batch)
        tile = "program"
        with self.inside(self.top):
            descending = self.longest_last()
        if descending and tiles_m * tiles_n > 1:
            self.line(f"tile = {tiles_m * tiles_n - 1} - program // {batch}")
            tile = "tile"
        if batch > 1:
            if tile == "tile":
                self.line(f"batch = program % {batch}")
            elif tiles_m * tiles_n > 1:
                self.line(f"batch = program // {tiles_m * tiles_n}")
                self.line(f"tile = program % {tiles_m * tiles_n}")
                tile = "tile"
            else:
                self.line("batch = program")
            step = 1
            for a in reversed(s.batch):
                outermost = a is s.batch[0]
                text = f"batch // {step}" if step > 1 else "batch"
                self.line(
                    f"{a.name} = {text}" if outermost else f"{a.name} = {f'({text})' if step > 1 else text} % {a.size}"
                )
                step *= a.size
        if tiles_m > 1 and tiles_n > 1:
            if t.group > 1:
                width = t.group * tiles_n
                self.line(f"first = {tile} // {width} * {t.group}")
                self.line(f"height = tl.minimum({tiles_m} - first, {t.group})")
                self.line(f"tile_m = first + {tile} % {width} % height")
                self.line(f"tile_n = {tile} % {width} // height")
            else:
                self.line(f"tile_m = {tile} % {tiles_m}")
                self.line(f"tile_n = {tile} // {tiles_m}")
        elif tiles_m > 1:
            self.line(f"tile_m = {tile}")
        elif tiles_n > 1:
            self.line(f"tile_n = {tile}")

    def longest_last(self) -> bool:
        """Whether later rows have more work, as under a causal mask: their programs are then launched first to avoid a
        tail."""
        if any(a.name == "part" for a in self.shape.batch):
            return False
        rooms = [
            r for e in self.kernel.reductions if e.axis in self.walked for r in self._rooms(e, e.axis)
        ]  # fmt: skip
        return any(r.side == -1 and r.rest.coefficient(a) > 0 for r in rooms for a in self.shape.rows)

    def _group(self, dim: str, group: tuple[Axis, ...]) -> None:
        """Emit the indices of the axes of a dimension."""
        step = 1
        for a in reversed(group):
            if len(group) > 1:
                text = f"{dim} // {step}" if step > 1 else dim
                self.line(f"{a.name}_ = {text}" if a is group[0] else f"{a.name}_ = {text} % {a.size}")
            step *= a.size

    def _stores(self, stores: Sequence[OutputStore]) -> None:
        """Emit all results; those along sequentially processed columns in one loop."""
        cols = {*self.shape.cols}  # a value that is constant along the columns is written to each of them
        walked = [s for s in stores if self.n_loop and cols & (s.value.axes | s.at.axes)]
        for store in stores:
            if store not in walked:
                self._store(store)
        if not walked:
            return
        for e in walk(s.value for s in walked):  # all reductions first: the loop over columns only reads their results
            if e.op == "reduce" and e.axes <= self.top.bound and self.scope.find(e) is None:
                self.value(e)
        inner = TritonScope(2, self.top.bound | set(self.shape.cols), outside=self.top)
        with self.inside(inner):
            self.line(f"n = n_ + tl.arange(0, {self.block['n']})")
            self._group("n", self.shape.cols)
            for store in walked:
                self._store(store)
        self.line(
            f"for n_ in tl.range(0, {self.shape.n}, {self.block['n']}, num_stages={self.tiling.stages}):", self.top
        )
        self.top.lines += inner.lines

    def _store_row(self, row: Row) -> None:
        """Emit interleaved results as one store, along an axis of their own."""
        buffer, count = row.stores[0].buffer, len(row.stores)
        where = self.position(row.at, row.at.range[1] + count >= WIDE)
        texts = [self._written(s, where.dims) for s in row.stores]
        width, dims = padded(count), (*where.dims, "beside")
        column = Tile(f"tl.arange(0, {width})", ("beside",), "int32")
        inside = [Tile(f"{column.text} < {count}", column.dims, "bool")] if width > count else []
        mask = self.mask(where.dims, dims, inside)
        target = f"{buffer} + {self.spread(where, dims)} + {self.spread(column, dims)}"
        whole = f"({', '.join(str(self.block[d]) for d in where.dims)}, {width})"
        self.line(f"tl.store({target}, tl.reshape({joined(texts)}, {whole}){f', mask={mask}' if mask else ''})")

    def _written(self, store: OutputStore, dims: tuple[str, ...] = ()) -> str:
        """Text of a result in its storage dtype; with `dims`, broadcast over these dimensions."""
        value, spot = store.value, self.kernel.buffers[store.buffer]
        tile = self.value(value) if value.op == "load" or value.kind != "float" else self.floated(value)
        if not dims:
            return tile.text
        if any(d not in dims for d in tile.dims):
            raise Unfusable("a result with more axes than its place")
        text = f"{tile.atom}.to({TRITON[spot.dtype]})" if tile.dtype not in ("const", spot.dtype) else tile.text
        if not tile.dims:
            return f"tl.full({self.sizes(dims)}, {text}, {TRITON[spot.dtype]})"
        spread = self.spread(Tile(text, tile.dims, spot.dtype), dims)
        return spread if tile.dims == dims else f"tl.broadcast_to({spread}, {self.sizes(dims)})"

    def _store(self, store: OutputStore) -> None:
        """Emit the store of one result."""
        buffer, at, value = store.buffer, store.at, store.value
        tile = self.value(value) if value.op == "load" or value.kind != "float" else self.floated(value)
        spot = self.kernel.buffers[buffer]
        where = self.position(at, at.range[1] >= WIDE)
        guards = [self.value(g) for g in store.guards]
        picks = [(self.value(e), step) for e, step in store.parts]
        placed = self.union([where, *(p for p, _ in picks)])
        dims = self.union([Tile("", placed, ""), tile, *guards])
        target = f"{buffer} + {self.spread(where, dims)}" if where.text != "0" else buffer
        target += "".join(f" + {self.spread(p, dims)}.to(tl.int64) * {step}" for p, step in picks)
        target = target if {*placed} == {*dims} else f"tl.broadcast_to({target}, {self.sizes(dims)})"
        mask = self.mask(dims, dims, [g for g in guards if g.dims])
        if alone := " & ".join(g.atom for g in guards if not g.dims):  # Python `and` would make the mask an integer
            every = mask or f"tl.full({self.sizes(dims)}, True, tl.int1)"
            mask = f"tl.where({alone}, {every}, False)" if dims else alone
        guarded = {d for g in guards for d in g.dims}  # exactly one element along them passes the guard
        if any(d not in placed and d not in guarded for d in tile.dims):
            raise Unfusable("a result with more axes than its place")
        text = f"{tile.atom}.to({TRITON[spot.dtype]})" if tile.dtype not in ("const", spot.dtype) else tile.text
        if tile.dims != dims and tile.dims:
            text = self.spread(Tile(text, tile.dims, spot.dtype), dims)
        if tile.dims != dims:
            text = (
                f"tl.broadcast_to({text}, {self.sizes(dims)})"
                if tile.dims
                else f"tl.full({self.sizes(dims)}, {text}, {TRITON[spot.dtype]})"
                if dims
                else text
            )
        self.line(f"tl.store({target}, {text}{f', mask={mask}' if mask else ''})")
