"""The loop over keys of warp-specialized attention in Gluon: the computation of the consumer warp groups, tile by tile.

The product of the queries with the next keys is in flight together with the product of the current weights with their
values, and the softmax of the next scores overlaps the second product (the intra-warpgroup pipelining of
FlashAttention-3, Shah et al. 2024, without its ping-pong between warp groups). A factor that each row has in its scores
(norm of a query, softmax scale) is left out of the product: the factor is computed while the product is in flight and
joins the subtraction of the maximum in one FMA.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ...ir.expr import Expr, walk
from ...ir.index import Axis, index
from ...ir.loop_fusion import exponential_of
from ...ir.unfusable import Unfusable
from ...machine import target
from ..emit.frame import TritonScope
from ..emit.loops import TileLoops
from ..emit.spelling import ACROSS, COMBINE, ITEMSIZE, NEUTRAL, TRITON, Tile
from .attention_frame import AttentionFrame, numbered
from .attention_parts import AttentionParts, parts_of
from .spelling import GROUP
from .tiles import AttentionLoads, SharedTiles


@dataclass(frozen=True)
class KeyLoop:
    """State of the loop over keys while it is emitted. `parts`: components of attention; `names`: reduction -> variable
    of its result; `scores`: variable of the scores; `keys`, `values`: Gluon expressions of the shared-memory tiles of a
    pipeline slot, one for each piece of the head width; `narrow`: the operands' dtype."""

    parts: AttentionParts
    names: Mapping[Expr, str]
    scores: str
    keys: Sequence[str]
    values: Sequence[str]
    narrow: str


@dataclass(eq=False)
class AttentionLoops(TileLoops):
    """Emitter part for reductions of a consumer group's tile of rows. Reductions over keys share one loop."""

    frame: AttentionFrame
    loads: AttentionLoads
    tiles: SharedTiles
    key_range: list[str] = field(default_factory=list, init=False)  # code: the key tiles of a program's tile
    cut: bool = field(default=False, init=False)  # whether tiles beyond the last one are masked
    factor: Tile | None = field(default=None, init=False)  # per-row factor of the scores, left out of their product

    def whole(self, e: Expr) -> Tile:
        """Gluon expression (a `Tile`) of the result of the reduction `e`, whose whole axis one tile holds; a result per
        row is converted to the layout of the rows of scores."""
        tile = super().whole(e)
        if tile.dims != ("m",):
            return tile
        return replace(tile, text=f"tl.convert_layout({tile.text}, tl.SliceLayout(1, S))")

    def _begin_at(self, name: str, dims: Sequence[str], fill: str, dtype: str) -> str:
        """The line that initializes a per-row accumulator."""
        if tuple(dims) != ("m",):
            raise Unfusable("an accumulator that is not one value per row")
        return f"{name} = tl.full({[GROUP]}, {fill}, {TRITON[dtype]}, layout=tl.SliceLayout(1, S))"

    def loop(self, wanted: Expr) -> None:
        """Emit the loop over keys that computes the reduction `wanted` and those that share its loop.

        Together they are attention: a maximum, sums relative to the maximum and a product with the values.
        """
        parts, outer = parts_of(self.frame, self.together(wanted)), self.frame.scope
        keys, values, narrow = self._sides(parts)
        masks = self._bounds(parts.ready, parts.top)
        names = {e: self.fresh("max" if e is parts.top else "acc") for e in parts.ready}
        loop = KeyLoop(parts, names, self.fresh("score"), keys, values, narrow)
        self.sums, self.weights = numbered(names[parts.product], len(values)), numbered("weights", len(values))
        first = self._first_tile(loop)
        for acc, (_, columns), layout in zip(self.sums, self.frame.piece("n"), numbered("O", len(values))):
            self.line(f"{acc} = tl.zeros([{GROUP}, {columns}], tl.float32, layout={layout})", outer)
        outer.lines += first.lines
        inner = self._next_tiles(loop, masks or {})
        self.line("for block in range(1, blocks):", outer)
        outer.lines += inner.lines
        for text in (
            *([] if self.tiles.through else self.tiles.done_with_queries()),
            "mbarrier.wait(values_full.index(slot), (step // STAGES) & 1)",
            *self._weighted(values),
            self._arrived(),
            "mbarrier.arrive(values_empty.index(slot))",
            "step += 1",
        ):
            self.line(text, outer)
        for e in parts.ready:
            outer.known[e] = Tile(names[e], ("m", "n") if e is parts.product else ("m",), "float32")

    def _sides(self, parts: AttentionParts) -> tuple[list[str], list[str], str]:
        """Emit the placement of the queries in shared memory.

        Returns (texts of the key tiles of a slot by width piece, the same of value tiles, the operands' dtype).
        """
        frame = self.frame
        dots, axis, score = self.shape.dots, frame.axis, parts.score
        deep = frame.dim_of(score.axis)
        self.tiles.width = frame.block[deep]
        queries = tuple(f for f in dots[score].left if f not in parts.own)
        raw = self._copied_queries(queries, parts.own, deep)
        self._operands_first([e for e in parts.ready if not parts.own], axis)
        left = self.products.side(queries)
        keys, dtype = self.tiles.ring(dots[score].right, (deep, axis.name), deep)
        values, other = self.tiles.ring(dots[parts.product].right, (axis.name, "n"), "n")
        if left.dims != ("m", deep) or dtype != other:
            raise Unfusable("queries that are not rows over the head axis, or keys and values of different dtypes")
        narrow = TRITON[dtype]
        if left.text != raw:
            if len(keys) > 1:
                raise Unfusable("queries in column pieces that are computed rather than loaded")
            self.line(
                f"{self.tiles.mine[0]}.store({left.text if left.dtype == dtype else f'{left.atom}.to({narrow})'})"
            )
            self.line("fence_async_shared()")
        return keys, values, narrow

    def _first_tile(self, loop: KeyLoop) -> TritonScope:
        """The peeled first iteration, which processes the last tile of keys: the only tile that may be masked or
        partial."""
        frame = self.frame
        outer, axis, parts = frame.scope, frame.axis, loop.parts
        first = TritonScope(outer.indent, outer.bound | {axis}, outside=outer)
        for text in (
            "slot = step % STAGES",
            "mbarrier.wait(keys_full.index(slot), (step // STAGES) & 1)",
            *self._scores(loop.keys, "slot"),
            f"{axis.name}_ = begin + (blocks - 1) * {frame.block[axis.name]}",
        ):
            self.line(text, first)
        frame.edge = True
        self._read_beside(first, parts.ready)
        if parts.own:
            before = len(outer.lines)
            factor = self.values.floated(self.kernel.builder.product(parts.own, []))
            first.lines += outer.lines[before:]  # here, not before the product
            del outer.lines[before:]
            self.line(f"factor = {factor.text}", first)
            self.factor = Tile("factor", ("m",), "float32")
        self.line(f"{loop.scores} = warpgroup_mma_wait(0, deps=[coming])", first)
        self.line("mbarrier.arrive(keys_empty.index(slot))", first)
        first.known[parts.score] = Tile(loop.scores, ("m", axis.name), "float32")
        self._body(first, loop, {}, outer)
        frame.edge = False
        return first

    def _next_tiles(self, loop: KeyLoop, masks: dict[Expr, Expr]) -> TritonScope:
        """The body of the other iterations.

        Their scores are in flight together with the product of the previous weights.
        """
        frame = self.frame
        outer, axis, parts = frame.scope, frame.axis, loop.parts
        inner = TritonScope(outer.indent + 1, outer.bound | {axis}, outside=outer)
        inner.known[parts.score] = Tile(loop.scores, ("m", axis.name), "float32")
        for text in (
            "ahead = (step + 1) % STAGES",
            "mbarrier.wait(keys_full.index(ahead), ((step + 1) // STAGES) & 1)",
            *self._scores(loop.keys, "ahead"),
            "mbarrier.wait(values_full.index(slot), (step // STAGES) & 1)",
            *self._weighted(loop.values),
            f"{axis.name}_ = begin + (blocks - 1 - block) * {frame.block[axis.name]}",
        ):
            self.line(text, inner)
        self._read_beside(inner, parts.ready)
        self.line(f"{loop.scores} = warpgroup_mma_wait({len(loop.values)}, deps=[coming])", inner)
        self.line("mbarrier.arrive(keys_empty.index(ahead))", inner)
        self._body(inner, loop, masks, None)
        self.line("slot = ahead", inner)
        self.line("step += 1", inner)
        return inner

    def _weighted(self, values: Sequence[str]) -> list[str]:
        """The asynchronous products of weights with values, by width piece."""
        return [
            f"{pending} = warpgroup_mma({w}, {v.format('slot')}, {acc}, is_async=True)"
            for pending, w, v, acc in zip(self._pending(), self.weights, values, self.sums)
        ]

    def _arrived(self) -> str:
        """The wait for the products of weights with values."""
        return f"{', '.join(self.sums)} = warpgroup_mma_wait(0, deps=[{', '.join(self._pending())}])"

    def _pending(self) -> list[str]:
        return numbered("pending", len(self.sums))

    def _scores(self, keys: Sequence[str], slot: str) -> list[str]:
        """The asynchronous product of queries with keys, accumulated over width pieces."""
        first, *others = [(q, k.format(slot)) for q, k in zip(self.tiles.mine, keys, strict=True)]
        return [
            f"coming = warpgroup_mma({first[0]}, {first[1]}, {self._zeros()}, use_acc=False, is_async=True)",
            *(f"coming = warpgroup_mma({q}, {k}, coming, is_async=True)" for q, k in others),
        ]

    def _copied_queries(self, left: Sequence[Expr], own: Sequence[Expr], deep: str) -> str:
        """Load the queries by TMA ahead of their tile, if they are 16-bit boxes.

        Returns the variable of the loaded tile, "" if there is none.
        """
        frame = self.frame
        (row,) = self.shape.rows
        loads = [e for e in walk([*left, *own]) if e.op == "load" and row in e.axes and not e.args]
        if len(loads) != 1 or ITEMSIZE.get(loads[0].value[3]) != 2:
            return ""
        for begin, columns in frame.piece(deep):
            with frame.resized(deep, columns, begin):
                named = self.loads.box_of(loads[0].value[0], loads[0].value[1], loads[0].value[3])
            if named is None or tuple(frame.dim_of(a) for a in named[1].axes) != ("m", deep):
                return ""
            frame.asked.append(named[0])
        for e in walk(left):  # issue other loads while waiting for the queries
            if e.op == "load" and e is not loads[0] and e.axes <= frame.top.bound:
                self.values.value(e)
        self.tiles.slots = 2 if self.tiles.turn != "0" and self.tiles.shared(2) <= target().shared_per_block else 1
        self.line(f"mbarrier.wait(queries_full.index({self.tiles.slot}), {self.tiles.phase})")
        if left != (loads[0],) or own:
            if len(frame.asked) > 1:
                raise Unfusable("queries in column pieces that are computed rather than loaded")
            self.line(f"raw = {self.tiles.mine[0]}.load(Q)")
        frame.top.known[loads[0]] = Tile("raw", ("m", deep), loads[0].value[3])
        return "raw"

    def _zeros(self) -> str:
        return f"tl.zeros([{GROUP}, {self.frame.block[self.frame.axis.name]}], tl.float32, layout=S)"

    def _bounds(self, ready: Sequence[Expr], top: Expr) -> dict[Expr, Expr] | None:
        """Emit the range of key tiles, which are iterated from last to first, so that masked tiles come first.

        Returns the masks that are redundant after the masked tiles, as mask -> replacement; None if every tile
        may be masked.
        """
        frame = self.frame
        here, step = TritonScope(1, set(frame.scope.bound)), frame.block[frame.axis.name]
        with self.inside(here):
            parts = self.bounds.segments(ready, frame.axis)
        begin, end = parts[0][0], parts[-1][1]
        texts = [line.strip() for line in here.lines]
        texts += [f"begin = {begin}", f"blocks = tl.maximum(({end} - begin + {step - 1}) // {step}, 1)"]
        if len(parts) == 2 and not self._one_cut(top):
            texts.append(f"cut = blocks - {parts[1][0]} // {step}")
        self.key_range = texts
        for text in texts:
            self.line(text)
        self.cut = texts[-1].startswith("cut")
        return parts[0][2] if len(parts) == 2 else None

    def _one_cut(self, top: Expr) -> bool:
        """Whether only the last tile of keys is partly masked: a causal mask, with a program's rows aligned to the key
        tiles."""
        frame = self.frame
        (row,) = self.shape.rows
        axis_masks = [r.rest for r in self.bounds.axis_masks(top, frame.axis) if r.side == -1]
        return frame.block[frame.axis.name] % frame.tall == 0 and axis_masks == [index(row)]

    def _read_beside(self, scope: TritonScope, ready: Sequence[Expr]) -> None:
        """Emit the key indices of a tile and its other loads (such as per-key biases), in flight while the products are
        waited for."""
        axis, seen, stack = self.frame.axis, set[Expr](), [a for e in ready for a in e.args]
        keys = f"tl.arange(0, {self.frame.block[axis.name]}, layout=tl.SliceLayout(0, S))"
        self.line(f"{axis.name} = {axis.name}_ + {keys}", scope)
        while stack:
            e = stack.pop()
            if e in seen or e.op == "reduce":
                continue
            seen.add(e)
            stack += e.args
            if e.op == "load" and not e.args and axis in e.axes <= {*self.shape.batch, axis}:
                with self.inside(scope):
                    self.values.value(e)

    def _running_max(
        self, e: Expr, axis: Axis, name: str, inner: TritonScope, outer: TritonScope | None
    ) -> tuple[Callable[[], Tile], Tile]:
        """Emit the update of the running maximum; results as of `TileLoops._running_max`: (function that returns the
        tile of the final maximum, tile of the factor that rescales sums).

        If scores have a per-row factor, the maximum is that of scores without the factor.
        """
        frame = self.frame
        if self.factor is None:
            return super()._running_max(e, axis, name, inner, outer)
        power, scale = exponential_of(self.kernel, e), self.fresh("scale")
        with self.inside(inner):
            body, _ = self._factored(e.args[0], inner)
            a = self.values.floated(body)
            a = self.values.named(replace(a, text=self.neutral(e, a, frame.dim_of(axis))))
            peak = f"{ACROSS['max'].format(a.text, a.dims.index(frame.dim_of(axis)))} * {self.factor.text}"
            for text in (
                f"{name}_new = {COMBINE['max'].format(name, peak)}",
                f"{name}_safe = tl.where({name}_new == float('-inf'), 0.0, {name}_new)",
                f"{scale} = tl.{power}({name} - {name}_safe)",
                f"{name} = {name}_new",
            ):
                self.line(text)
            inner.known[e.args[0]] = Tile(f"{a.text} * {frame.spread(self.factor, a.dims)}", a.dims, a.dtype)
            inner.known[e] = Tile(f"{name}_safe", ("m",), frame.wide)
        if outer is not None:
            self.line(self._begin_at(name, ("m",), NEUTRAL["max"], frame.wide), outer)
        return (lambda: Tile(name, ("m",), frame.wide)), Tile(scale, ("m",), frame.wide)

    def _body(self, inner: TritonScope, loop: KeyLoop, masks: dict[Expr, Expr], outer: TritonScope | None) -> None:
        """Emit the softmax update: maximum, sums, and the rescaling of the output accumulator.

        `outer` is where accumulators begin (first tile), None in other tiles.
        """
        frame = self.frame
        axis = frame.axis
        parts, top = loop.parts, loop.parts.top
        body = top.args[0]
        if masks and self.cut:
            inner.bound.discard(axis)  # mask operands are computed in the branch that needs them
            for head, known in (("if block < cut:", {}), ("else:", masks)):
                branch = TritonScope(inner.indent + 1, inner.bound | {axis}, outside=inner)
                with self.inside(branch):
                    branch.known.update({e: self.values.value(kept) for e, kept in known.items()})
                    self.line(f"logits = {self.values.floated(body).text}")
                self.line(head, inner)
                inner.lines += branch.lines
            inner.bound.add(axis)
            inner.known[body] = Tile("logits", ("m", axis.name), "float32")
        elif masks:
            with self.inside(inner):
                inner.known.update({e: self.values.value(kept) for e, kept in masks.items()})
        _, scale = self._running_max(top, axis, loop.names[top], inner, outer)
        for e in parts.ready:
            if e not in (top, parts.product):
                self._accumulate(e, axis, loop.names[e], inner, outer, scale)
        with self.inside(inner):
            weights = self.products.side(self.shape.dots[parts.product].left)
            if weights.dims != ("m", axis.name):
                raise Unfusable("attention weights that do not vary along rows and keys")
            if outer is None:
                self.line(self._arrived())
                self.line("mbarrier.arrive(values_empty.index(slot))")
            for i, (acc, taken) in enumerate(zip(self.sums, self.weights)):
                frame.layouts["m", "n"], operand = (numbered(x, len(self.sums))[i] for x in "OP")
                if outer is None:
                    self.line(f"{acc} = {acc} * {frame.spread(scale, ('m', 'n'))}")
                self.line(f"{taken} = tl.convert_layout({weights.atom}.to({loop.narrow}), {operand})")
