"""Emits reductions: one call where a tile holds the whole axis, else a loop over tiles with accumulators.

Reductions along one axis that do not depend on each other share a loop. A sum of exp(a - max(a)) shares the loop of its
maximum: the accumulator is rescaled when the maximum changes (online softmax; with matrix products this is
FlashAttention). The IR contains the plain formulas only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ....egraph.types import dtypes
from ...ir.expr import Expr, walk
from ...ir.index import Axis
from ...ir.loop_fusion import exponential_of, loop_sharing, shared_maximum
from ...ir.unfusable import Unfusable
from .frame import TritonPart, TritonScope
from .loop_bounds import LoopBounds
from .products import Products, is_zero_out_of_bounds
from .spelling import ACROSS, COMBINE, NEUTRAL, TRITON, Tile
from .values import TileValues


@dataclass(eq=False)
class TileLoops(TritonPart):
    """Emitter part for reductions: emits one call where a tile holds the whole axis, else a loop over tiles with an
    accumulator."""

    values: TileValues
    products: Products
    bounds: LoopBounds

    def reduction(self, e: Expr) -> Tile:
        """Emit the reduction `e`; returns the Triton expression (a `Tile`) of its result. If the reduction axis is
        tiled, that is the accumulator of an emitted loop over its tiles; otherwise one tile that covers the axis is
        reduced by one call."""
        if e.axis in self.frame.walked:
            self.loop(e)
            found = self.frame.scope.find(e)
            assert found is not None
            return found
        return self.whole(e)

    def neutral(self, e: Expr, body: Tile, dim: str) -> str:
        """Triton expression of `body`, the tile that the reduction `e` reduces, with the reduction's neutral element (0
        for a sum) at positions beyond the end of the dimension `dim`."""
        frame = self.frame
        if not frame.ragged(dim) or (e.value[0] == "sum" and is_zero_out_of_bounds(e.args[0], e.axis)):
            return f"{body.atom} + 0.0" if _as_product(e, body) else body.text
        mask = frame.spread(Tile(f"{dim} < {frame.extent[dim]}", (dim,), "bool"), body.dims)
        return f"tl.where({mask}, {body.text}, {_neutral(e, body.dtype)})"

    def whole(self, e: Expr) -> Tile:
        """Triton expression (a `Tile`) of the result of the reduction `e`, whose whole axis one tile holds. Raises
        Unfusable for a monoid (combining operation such as sum or max) that Triton lacks."""
        dot = self.shape.dots.get(e)
        if dot is not None and (tile := self.products.dot(e, dot, None)) is not None:
            return tile
        dim = self.frame.dim_of(e.axis)
        body = self.values.floated(e.args[0])
        across = ACROSS.get(e.value[0])
        if across is None or e.kind == "bool":
            raise Unfusable(f"a reduction by {e.value[0]}")
        if dim not in body.dims:
            raise Unfusable("a reduction over an axis along which its body is constant")
        kept = tuple(d for d in body.dims if d != dim)
        text = across.format(self.neutral(e, body, dim), body.dims.index(dim))
        return Tile(text, kept, body.dtype)

    def loop(self, wanted: Expr) -> None:
        """Emit the loop that computes the reduction `wanted` and all others along the same axis whose operands are
        available."""
        frame = self.frame
        axis = wanted.axis
        ready = self.together(wanted)
        self._operands_first(ready, axis)
        outer = frame.scope
        names = {e: self.fresh("max" if e.value[0] == "max" else "acc") for e in ready}
        stages = f", num_stages={self.tiling.stages}" if not any(x in self.shape.dots for x in ready) else ""
        start, step = f"{axis.name}_", frame.block[axis.name]
        finals: dict[Expr, Callable[[], Tile]] = {}
        for low, high, assumed in self.bounds.segments(ready, axis):
            inner = TritonScope(outer.indent + 1, outer.bound | {axis}, outside=outer)
            with self.inside(inner):
                if axis not in frame.single:
                    self.line(f"{axis.name} = {start} + tl.arange(0, {step})")
                for e, kept in assumed.items():
                    inner.known[e] = self.values.value(kept)
            finals = self._updates(ready, axis, names, inner, None if finals else outer)
            steps = f"tl.range({low}, {high}, {step}{stages})"
            if axis in frame.single:
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
        """Emit a loop's body into `inner` and, if `outer` is given, the initialization of its accumulators there.

        `names` are the accumulators' variables. Returns for each reduction a function that emits what follows
        the loop and returns the result's tile.
        """
        running = [e for e in ready if e.value[0] == "max" and any(shared_maximum(x, axis) is e for x in ready)]
        scales: dict[Expr, Tile] = {}
        finals: dict[Expr, Callable[[], Tile]] = {}
        for e in running:
            finals[e], scales[e] = self._running_max(e, axis, names[e], inner, outer)
        for e in ready:
            if e not in finals:
                maximum = shared_maximum(e, axis)
                scale = scales.get(maximum) if maximum is not None else None
                finals[e] = self._accumulate(e, axis, names[e], inner, outer, scale)
        for name in inner.held:  # all products first, then the waits for them
            self.line(f"{name} = held({name})", inner)
        return finals

    def _operands_first(self, ready: Sequence[Expr], axis: Axis) -> None:
        """Emit the reductions that the bodies of `ready` read and that must be computed before the loop over `axis`."""
        frame = self.frame
        for e in ready:
            for x in walk(e.args):
                if x.op == "reduce" and x not in ready and x.axes <= frame.scope.bound and axis not in x.axes:
                    if frame.scope.find(x) is None and (x.axis in frame.walked or x.axes):
                        self.values.value(x)

    def together(self, wanted: Expr) -> list[Expr]:
        """Reductions along the same axis as `wanted` that can share one loop and whose operands are available, inner
        ones first."""
        axis = wanted.axis
        same = [
            e for e in self.kernel.reductions
            if e.axis == axis and e.axes <= self.frame.scope.bound and self.frame.scope.find(e) is None
        ]  # fmt: skip
        chosen = loop_sharing(same, lambda e: shared_maximum(e, axis))
        if wanted not in chosen:  # its own operands first
            first = next((x for x in walk(wanted.args) if x in same), None)
            if first is None:  # the loop would be nested in the one that needs its value
                raise Unfusable("a loop over an axis that no enclosing block binds")
            self.loop(first)
            return self.together(wanted)
        return chosen

    def _running_max(
        self, e: Expr, axis: Axis, name: str, inner: TritonScope, outer: TritonScope | None
    ) -> tuple[Callable[[], Tile], Tile]:
        """Emit the update of a running maximum.

        Returns (function that returns the tile of the final maximum, tile of the factor that rescales sums from
        the old to the new maximum).
        """
        frame = self.frame
        power = exponential_of(self.kernel, e)
        with self.inside(inner):
            dim = frame.dim_of(axis)
            body, factor = (e.args[0], 1.0) if frame.ragged(dim) else self._factored(e.args[0], inner)
            a = self.values.floated(body)
            if frame.ragged(dim):
                a = Tile(self.neutral(e, a, dim), a.dims, a.dtype)
            a = self.values.named(a)
            if dim not in a.dims:
                raise Unfusable("a maximum over an axis along which its body is constant")
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
            inner.known[e] = Tile(f"{name}_safe", kept, frame.wide)
        if outer is not None:
            self.line(self._begin_at(name, kept, NEUTRAL["max"], frame.wide), outer)
        return (lambda: Tile(name, kept, frame.wide)), Tile(scale, kept, frame.wide)

    def _factored(self, e: Expr, inner: TritonScope) -> tuple[Expr, float]:
        """(value, factor) of a value times a positive constant, the factor 1.0 for other values.

        Mask terms that are known to be 0 here are dropped.
        """
        while e.op == "add" and (
            still := [a for a in e.args if a not in inner.known or inner.known[a].text != "0.0"]
        ) != [*e.args]:
            (e,) = still
        if e in inner.known or e.op != "mul" or e.args[1].op != "const" or not e.args[1].value > 0:
            return e, 1.0
        return e.args[0], float(e.args[1].value)

    def _begin_at(self, name: str, dims: Sequence[str], fill: str, dtype: str) -> str:
        """The line that initializes an accumulator to the neutral element."""
        return f"{name} = tl.full({self.frame.sizes(dims)}, {fill}, {TRITON[dtype]})" if dims else f"{name} = {fill}"

    def _accumulate(
        self, e: Expr, axis: Axis, name: str, inner: TritonScope, outer: TritonScope | None, scale: Tile | None
    ) -> Callable[[], Tile]:
        """Emit the update of a reduction's accumulator, first multiplied by `scale` if given. Returns a function that
        emits the code after the loop and returns the result's tile."""
        frame = self.frame
        monoid = e.value[0]
        dot = self.shape.dots.get(e)
        dim = frame.dim_of(axis)
        with self.inside(inner):
            if dot is not None:
                dims = tuple(d for d in frame.order if d in {frame.dim_of(a) for a in dot.rows | dot.cols})
                start = name if scale is None else f"{name} * {frame.spread(scale, dims)}"
                tile = self.products.dot(e, dot, start)
                if tile is not None:
                    self.line(f"{name} = {tile.text}")
                    if self.products.must_wait(dot, tile.dims[0], scale is not None):
                        inner.held.append(name)
                    if outer is not None:
                        self.line(f"{name} = tl.zeros({frame.sizes(tile.dims)}, tl.float32)", outer)
                    return lambda: Tile(name, tile.dims, "float32")
            rows = self.products.row_products(e, axis)
            if rows is not None:
                return self.products.on_the_diagonal(name, *rows, outer)
            body = self.values.floated(e.args[0])
            text = self.neutral(e, body, dim)
            kept = tuple(d for d in body.dims if d != dim)
            if monoid not in ACROSS or e.kind == "bool":
                raise Unfusable(f"a looped reduction by {monoid} of {e.kind}")
            dtype = frame.wide if e.kind == "float" else body.dtype
            if scale is not None:
                old = f"{name} * {frame.spread(scale, kept)}"
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


def _neutral(e: Expr, dtype: str) -> str:
    """Text of the neutral element of a reduction; an integer for integer reductions, which keeps the result an
    integer."""
    if e.kind == "float":
        return NEUTRAL[e.value[0]]
    dtype = "int32" if dtype in ("const", "bool") else dtype
    return str({"sum": 0, "prod": 1, "max": dtypes.least(dtype), "min": dtypes.greatest(dtype)}[e.value[0]])


def _as_product(e: Expr, body: Tile) -> bool:
    """Whether Triton's compiler would turn a sum of products into a matrix product; the emitter then adds 0 to prevent
    that. Triton's product is in TF32 (relative error 0.001), and wrong for sums of two or four elements, for which
    tensor cores have no instruction (0.7; Triton 3.6 on an H200)."""
    return e.value[0] == "sum" and e.kind == "float" and e.args[0].op == "mul" and len(body.dims) == 3
