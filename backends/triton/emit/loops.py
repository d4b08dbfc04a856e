"""Reductions: one call where a tile holds the whole axis, else a loop over tiles with accumulators.

Reductions of one level share a loop. A sum of exp(a - max(a)) shares the loop of its maximum: the accumulator is
rescaled when the maximum changes (online softmax; over products this is FlashAttention). Both follow from the plain
formula.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ....egraph.ir import dtypes
from ...ir.index import Axis, Index, index
from ...ir.kernel import Expr, Unfusable, walk
from ...ir.loop_fusion import Bound, Room, power_of, rolled, seen_by, sharing, up_to
from .frame import TritonScope
from .products import Products, vanishes
from .spelling import ACROSS, COMBINE, NEUTRAL, TRITON, Tile


class Loops(Products):
    """Emitter of reductions."""

    def reduction(self, e: Expr) -> Tile:
        """The tile of a reduction: the accumulator of a loop if its axis is tiled."""
        if e.axis in self.walked:
            self.loop(e)
            found = self.scope.find(e)
            assert found is not None
            return found
        return self.whole(e)

    def neutral(self, e: Expr, body: Tile, dim: str) -> str:
        """The body's text, with the neutral element where the axis has no element."""
        if not self.ragged(dim) or (e.value[0] == "sum" and vanishes(e.args[0], e.axis)):
            return f"{body.atom} + 0.0" if _as_product(e, body) else body.text
        mask = self.spread(Tile(f"{dim} < {self.extent[dim]}", (dim,), "bool"), body.dims)
        return f"tl.where({mask}, {body.text}, {_neutral(e, body.dtype)})"

    def whole(self, e: Expr) -> Tile:
        """The tile of a reduction whose axis one tile holds whole."""
        dot = self.shape.dots.get(e)
        if dot is not None and (tile := self.dot(e, dot, None)) is not None:
            return tile
        dim = self.dim_of(e.axis)
        body = self.floated(e.args[0])
        across = ACROSS.get(e.value[0])
        if across is None or e.kind == "bool":
            raise Unfusable(f"a reduction by {e.value[0]}")
        if dim not in body.dims:
            raise Unfusable("a reduction along an axis that no tile has")
        kept = tuple(d for d in body.dims if d != dim)
        text = across.format(self.neutral(e, body, dim), body.dims.index(dim))
        return Tile(text, kept, body.dtype)

    def loop(self, wanted: Expr) -> None:
        """Emit the loop that computes a reduction and all others along its axis that are ready."""
        axis = wanted.axis
        ready = self.together(wanted)
        self._operands_first(ready, axis)
        outer = self.scope
        names = {e: self.fresh("max" if e.value[0] == "max" else "acc") for e in ready}
        stages = f", num_stages={self.tiling.stages}" if not any(x in self.shape.dots for x in ready) else ""
        start, step = f"{axis.name}_", self.block[axis.name]
        finals: dict[Expr, Callable[[], Tile]] = {}
        for low, high, assumed in self.segments(ready, axis):
            inner = TritonScope(outer.indent + 1, outer.bound | {axis}, outside=outer)
            with self.inside(inner):
                if axis not in self.single:
                    self.line(f"{axis.name} = {start} + tl.arange(0, {step})")
                for e, kept in assumed.items():
                    inner.known[e] = self.value(kept)
            finals = self._updates(ready, axis, names, inner, None if finals else outer)
            steps = f"tl.range({low}, {high}, {step}{stages})"
            if axis in self.single:
                start, steps = axis.name, f"tl.static_range({axis.size})"
            self.line(f"for {start} in {steps}:")
            outer.lines += inner.lines
        for e in ready:
            outer.known[e] = finals[e]()

    def _updates(
        self,
        ready: Sequence[Expr],
        axis: Axis,
        names: Mapping[Expr, str],
        inner: TritonScope,
        outer: TritonScope | None,
    ) -> dict[Expr, Callable[[], Tile]]:
        """Emit a loop's body and, in `outer` if given, the initialization of its accumulators. Returns what finishes
        each reduction after the loop."""
        running = [e for e in ready if e.value[0] == "max" and any(rolled(x, axis) is e for x in ready)]
        scales: dict[Expr, Tile] = {}
        finals: dict[Expr, Callable[[], Tile]] = {}
        for e in running:
            finals[e], scales[e] = self._running_max(e, axis, names[e], inner, outer)
        for e in ready:
            if e not in finals:
                maximum = rolled(e, axis)
                scale = scales.get(maximum) if maximum is not None else None
                finals[e] = self._accumulate(e, axis, names[e], inner, outer, scale)
        for name in inner.held:  # all products first, then the waits for them
            self.line(f"{name} = held({name})", inner)
        return finals

    def _operands_first(self, ready: Sequence[Expr], axis: Axis) -> None:
        """Emit the reductions that the bodies read but that do not run inside this loop."""
        for e in ready:
            for x in walk(e.args):
                if x.op == "reduce" and x not in ready and x.axes <= self.scope.bound and axis not in x.axes:
                    if self.scope.find(x) is None and (x.axis in self.walked or x.axes):
                        self.value(x)

    def together(self, wanted: Expr) -> list[Expr]:
        """Ready reductions along the same axis that can share one loop, inner ones first."""
        axis = wanted.axis
        same = [
            e for e in self.kernel.reductions
            if e.axis == axis and e.axes <= self.scope.bound and self.scope.find(e) is None
        ]  # fmt: skip
        chosen = sharing(same, lambda e: rolled(e, axis))
        if wanted not in chosen:  # its own operands first
            first = next((x for x in walk(wanted.args) if x in same), None)
            if first is None:  # the loop would be nested in the one that needs its value
                raise Unfusable("a loop over what no block around it binds")
            self.loop(first)
            return self.together(wanted)
        return chosen

    def _running_max(
        self, e: Expr, axis: Axis, name: str, inner: TritonScope, outer: TritonScope | None
    ) -> tuple[Callable[[], Tile], Tile]:
        """Emit the update of a running maximum. Returns what reads the final maximum, and the factor that rescales
        sums relative to the old one."""
        power = power_of(self.kernel, e)
        with self.inside(inner):
            dim = self.dim_of(axis)
            body, factor = (e.args[0], 1.0) if self.ragged(dim) else self._factored(e.args[0], inner)
            a = self.floated(body)
            if self.ragged(dim):
                a = Tile(self.neutral(e, a, dim), a.dims, a.dtype)
            a = self.named(a)
            if dim not in a.dims:
                raise Unfusable("a maximum of what is the same along its axis")
            kept = tuple(d for d in a.dims if d != dim)
            peak = ACROSS["max"].format(a.text, a.dims.index(dim))
            if factor != 1.0:  # scale the maximum only: below, multiply and subtract fuse into one FMA
                peak, a = f"{peak} * {factor!r}", Tile(f"{a.text} * {factor!r}", a.dims, a.dtype)
            inner.known[e.args[0]] = a
            self.line(f"{name}_new = {COMBINE['max'].format(name, peak)}")
            self.line(f"{name}_safe = tl.where({name}_new == float('-inf'), 0.0, {name}_new)")
            scale = self.fresh("scale")
            self.line(f"{scale} = tl.{power}({name} - {name}_safe)")
            self.line(f"{name} = {name}_new")
            inner.known[e] = Tile(f"{name}_safe", kept, self.wide)
        if outer is not None:
            self.line(self._begin_at(name, kept, NEUTRAL["max"], self.wide), outer)
        return (lambda: Tile(name, kept, self.wide)), Tile(scale, kept, self.wide)

    def _factored(self, e: Expr, inner: TritonScope) -> tuple[Expr, float]:
        """(value, factor) of a value times a positive constant; masks that change nothing here are dropped."""
        while e.op == "add" and (
            still := [a for a in e.args if a not in inner.known or inner.known[a].text != "0.0"]
        ) != [*e.args]:
            (e,) = still
        if e in inner.known or e.op != "mul" or e.args[1].op != "const" or not e.args[1].value > 0:
            return e, 1.0
        return e.args[0], float(e.args[1].value)

    def _begin_at(self, name: str, dims: Sequence[str], fill: str, dtype: str) -> str:
        """The line that initializes an accumulator to the neutral element."""
        return f"{name} = tl.full({self.sizes(dims)}, {fill}, {TRITON[dtype]})" if dims else f"{name} = {fill}"

    def _accumulate(
        self, e: Expr, axis: Axis, name: str, inner: TritonScope, outer: TritonScope | None, scale: Tile | None
    ) -> Callable[[], Tile]:
        """Emit the update of a reduction's accumulator. Returns what finishes the reduction after the loop."""
        monoid = e.value[0]
        dot = self.shape.dots.get(e)
        dim = self.dim_of(axis)
        with self.inside(inner):
            if dot is not None:
                dims = tuple(d for d in self.order if d in {self.dim_of(a) for a in dot.rows | dot.cols})
                start = name if scale is None else f"{name} * {self.spread(scale, dims)}"
                tile = self.dot(e, dot, start)
                if tile is not None:
                    self.line(f"{name} = {tile.text}")
                    if self.overtaken(dot, tile.dims[0], scale is not None):
                        inner.held.append(name)
                    if outer is not None:
                        self.line(f"{name} = tl.zeros({self.sizes(tile.dims)}, tl.float32)", outer)
                    return lambda: Tile(name, tile.dims, "float32")
            rows = self._row_products(e, axis)
            if rows is not None:
                return self._on_the_diagonal(name, *rows, outer)
            body = self.floated(e.args[0])
            text = self.neutral(e, body, dim)
            kept = tuple(d for d in body.dims if d != dim)
            if monoid not in ACROSS or e.kind == "bool":
                raise Unfusable(f"a walked reduction by {monoid} of {e.kind}")
            dtype = self.wide if e.kind == "float" else body.dtype
            if scale is not None or self.tiling.options.get("eager_sums"):
                old = name if scale is None else f"{name} * {self.spread(scale, kept)}"
                self.line(f"{name} = {COMBINE[monoid].format(old, ACROSS[monoid].format(text, body.dims.index(dim)))}")
                held = kept
            else:
                self.line(f"{name} = {COMBINE[monoid].format(name, text)}")
                held = body.dims
        if outer is not None:
            self.line(self._begin_at(name, held, _neutral(e, dtype), dtype), outer)
        if held == kept:
            return lambda: Tile(name, kept, dtype)

        def final() -> Tile:
            self.line(f"{name} = {ACROSS[monoid].format(name, held.index(dim))}")
            return Tile(name, kept, dtype)

        return final

    def segments(self, ready: Sequence[Expr], axis: Axis) -> list[tuple[str, str, dict[Expr, Expr]]]:
        """Loop ranges over an axis: (start, end, masks that are redundant there).

        Where a mask makes every body neutral beyond a bound, the loop ends at the bound. A causal mask is applied only
        in the last tiles.
        """
        own = [e for e in ready if rolled(e, axis) not in ready]
        found = [self._rooms(e, axis) for e in own if axis not in self.single]
        if not all(found) or not found:
            return [("0", self._last_seen(own, axis) or str(axis.size), {})]
        step = self.block[axis.name]
        lows, highs = (
            set.intersection(*({r.rest for r in rooms if r.side == side} for rooms in found)) for side in (1, -1)
        )
        first = [f"tl.maximum({self._extreme(i * -1, 'min')}, 0) // {step} * {step}" for i in lows][:1] or ["0"]
        last = [f"tl.minimum({self._extreme(i, 'max')} + 1, {axis.size})" for i in highs][:1] or [str(axis.size)]
        masks = {r.mask: r.kept for rooms in found for r in rooms}
        alone = all(len(rooms) == 1 and rooms[0].alone for rooms in found)
        if lows or len(highs) != 1 or not alone or axis.size <= step:
            return [(first[0], last[0], {})]
        (bound,) = highs
        free = self.fresh("free")
        seen = f"tl.minimum({self._extreme(bound, 'min')} + 1, {axis.size})"
        seen = f"tl.maximum({seen}, 0)" if bound.range[0] < -1 else seen  # a part may begin beyond all that a row sees
        self.line(f"{free} = {seen} // {step} * {step}")
        return [("0", free, masks), (free, last[0], {})]

    def _last_seen(self, own: Sequence[Expr], axis: Axis) -> str:
        """End of the loop if a number in memory (such as the current position in a KV cache) masks every maximum beyond
        it; else ""."""
        if axis in self.single or any(e.value[0] != "max" for e in own) or not own:
            return ""
        first, *others = ([b for b in up_to(e.args[0]) if self._ends(b, axis)] for e in own)
        for at, number, strict in (b for b in first if all(b in o for o in others)):
            bound, begin = self.value(number), self.position(at - index(axis))
            if not bound.dims and not begin.dims:
                count = f"{bound.atom} - ({begin.text})" if strict else f"{bound.atom} + 1 - ({begin.text})"
                return f"tl.minimum(tl.maximum({count}, 0), {axis.size}).to(tl.int32)"
        return ""

    def _ends(self, bound: Bound, axis: Axis) -> bool:
        """Whether a bound limits this axis by loop-invariant values."""
        at, number, _ = bound
        rest = at - index(axis) * at.coefficient(axis)
        return (
            at.coefficient(axis) == 1
            and axis not in rest.axes | number.axes
            and rest.axes | number.axes <= self.scope.bound
        )

    def _rooms(self, e: Expr, axis: Axis) -> list[Room]:
        """The masks of a reduction's body that bound an axis from one side."""
        found = []
        for room, mask, kept, alone in seen_by(e, self.kernel.builder.const(1.0)):
            side = room.coefficient(axis)
            rest = room - index(axis) * side
            across = {self.dim_of(a) for a in rest.axes if a not in self.shape.batch}
            if side in (1, -1) and axis not in rest.axes and rest.axes <= self.scope.bound and len(across) <= 1:
                found.append(Room(rest, side, mask, kept, alone))
        return found

    def _extreme(self, at: Index, side: str) -> str:
        """Text of the minimum or maximum of an index over a tile."""
        tile = self.position(at)
        for _ in tile.dims[1:]:
            raise Unfusable("a bound over two dimensions")
        return f"tl.{side}({tile.text}, 0)" if tile.dims else f"({tile.text})"


def _neutral(e: Expr, dtype: str) -> str:
    """The neutral element of a reduction. Integer reductions get an integer, which keeps the result an integer."""
    if e.kind == "float":
        return NEUTRAL[e.value[0]]
    dtype = "int32" if dtype in ("const", "bool") else dtype
    return str({"sum": 0, "prod": 1, "max": dtypes.least(dtype), "min": dtypes.greatest(dtype)}[e.value[0]])


def _as_product(e: Expr, body: Tile) -> bool:
    """Whether Triton's compiler would turn a sum into a matrix product, which is prevented by adding 0.

    Triton does so in TF32, and wrongly for sums of two or four elements, for which tensor cores have no instruction
    (Triton 3.6 on an H200: relative errors of 0.001 and of 0.7).
    """
    return e.value[0] == "sum" and e.kind == "float" and e.args[0].op == "mul" and len(body.dims) == 3
