"""The loop over keys of warp-specialized attention in Gluon: what the consumer warp groups compute, tile by tile.

The product of the queries with the next keys and that of the current weights with their values are in flight together,
and softmax of the next scores overlaps the latter (the intra-warpgroup pipelining of FlashAttention-3, Shah et al.
2024, without its ping-pong between warp groups). A factor that each row has in its scores (norm of a query, softmax
scale) is left out of the product: the factor is computed while the product is in flight and joins the subtraction of
the maximum in one FMA.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ...ir.index import Axis, index
from ...ir.kernel import Expr, Unfusable, walk
from ...ir.loop_fusion import power_of, rolled
from ...machine import target
from ..emit.frame import TritonScope
from ..emit.spelling import ACROSS, COMBINE, ITEMSIZE, NEUTRAL, TRITON, Tile
from .spelling import GROUP
from .tiles import AttentionTiles, numbered


def _positive(e: Expr) -> bool:
    """Whether a value is certainly not negative, so that the factor may be applied after the maximum."""
    if e.op in ("mul", "div"):
        return all(map(_positive, e.args))
    return e.op in ("rsqrt", "sqrt", "exp", "exp2") or (e.op == "const" and e.value > 0)


def _scales(e: Expr, score: Expr) -> bool:
    """Whether the argument of the softmax is the score, possibly masked, so that a factor of the score is a factor of
    the argument."""
    if e is score:
        return True
    hidden = (-math.inf, 0.0)
    if e.op == "add":
        masks = [
            x for x in e.args if x.op == "where" and all(a.op == "const" and a.value in hidden for a in x.args[1:])
        ]
        return len(masks) == 1 and any(_scales(x, score) for x in e.args if x is not masks[0])
    if e.op == "where":
        kept = [x for x in e.args[1:] if not (x.op == "const" and x.value == -math.inf)]
        return len(kept) == 1 and _scales(kept[0], score)
    return False


@dataclass(frozen=True)
class Parts:
    """Components of a loop over keys: all reductions that are ready after the loop; among them the product with the
    values and the maximum (`top`); the scores; and `own`, the per-row factors of the scores that are left out of their
    product."""

    ready: Sequence[Expr]
    product: Expr
    score: Expr
    top: Expr
    own: Sequence[Expr]


@dataclass(frozen=True)
class KeyLoop:
    """A loop over keys with the variable names of its results and scores, the texts of key and value tiles of a
    pipeline slot (by width piece), and the operands' dtype (`narrow`)."""

    parts: Parts
    names: Mapping[Expr, str]
    scores: str
    keys: Sequence[str]
    values: Sequence[str]
    narrow: str


class AttentionLoop(AttentionTiles):
    """Emitter of a consumer group's computation for a tile of rows."""

    def loop(self, wanted: Expr) -> None:
        """Emit the loop that computes a maximum, sums relative to the maximum and a product with the values."""
        parts, outer = self._parts(self.together(wanted)), self.scope
        keys, values, narrow = self._sides(parts)
        masks = self._bounds(parts.ready, parts.top)
        names = {e: self.fresh("max" if e is parts.top else "acc") for e in parts.ready}
        loop = KeyLoop(parts, names, self.fresh("score"), keys, values, narrow)
        self.sums, self.weights = numbered(names[parts.product], len(values)), numbered("weights", len(values))
        first = self._first_tile(loop)
        for acc, (_, columns), layout in zip(self.sums, self.piece("n"), numbered("O", len(values))):
            self.line(f"{acc} = tl.zeros([{GROUP}, {columns}], tl.float32, layout={layout})", outer)
        outer.lines += first.lines
        inner = self._next_tiles(loop, masks or {})
        self.line("for block in range(1, blocks):", outer)
        outer.lines += inner.lines
        for text in (
            *([] if self.through else self._done_with_queries()),
            "mbarrier.wait(values_full.index(slot), (step // STAGES) & 1)",
            *self._weighted(values),
            self._arrived(),
            "mbarrier.arrive(values_empty.index(slot))",
            "step += 1",
        ):
            self.line(text, outer)
        for e in parts.ready:
            outer.known[e] = Tile(names[e], ("m", "n") if e is parts.product else ("m",), "float32")

    def _parts(self, ready: Sequence[Expr]) -> Parts:
        """The components of the loop over some reductions. Unfusable unless they form attention."""
        dots, axis = self.shape.dots, self.axis
        products = [e for e in ready if e in dots]
        scores = [e for e in walk(x for r in ready for x in r.args) if e in dots and axis in e.axes]
        maxima = [e for e in ready if e.value[0] == "max"]
        if self.rings or len(products) != 1 or len(scores) != 1 or len(maxima) != 1:
            raise Unfusable("not one product inside another one")
        (product,), (score,), (top,) = products, scores, maxima
        if any(rolled(e, axis) is not top for e in ready if e is not top) or score.axis in self.walked:
            raise Unfusable("sums that do not follow a maximum")
        if any(e.op == "reduce" and e not in (score, *ready) and axis in e.axes for r in ready for e in walk(r.args)):
            raise Unfusable("statistics of keys in the loop")
        own: list[Expr] = []
        if _scales(top.args[0], score):
            own = [f for f in dots[score].left if score.axis not in f.axes and _positive(f)]
        return Parts(ready, product, score, top, own if any(f.axes for f in own) else [])

    def _sides(self, parts: Parts) -> tuple[list[str], list[str], str]:
        """Put the queries into shared memory. Returns the texts of key and of value tiles of a slot (by width piece),
        and the operands' dtype."""
        dots, axis, score = self.shape.dots, self.axis, parts.score
        deep = self.dim_of(score.axis)
        self.width = self.block[deep]
        queries = tuple(f for f in dots[score].left if f not in parts.own)
        raw = self._copied_queries(queries, parts.own, deep)
        self._operands_first([e for e in parts.ready if not parts.own], axis)
        left = self.side(queries)
        keys, dtype = self.ring(dots[score].right, (deep, axis.name), deep)
        values, other = self.ring(dots[parts.product].right, (axis.name, "n"), "n")
        if left.dims != ("m", deep) or dtype != other:
            raise Unfusable("queries that are no rows, or two dtypes")
        narrow = TRITON[dtype]
        if left.text != raw:
            if len(keys) > 1:
                raise Unfusable("queries in pieces that are computed")
            self.line(f"{self.mine[0]}.store({left.text if left.dtype == dtype else f'{left.atom}.to({narrow})'})")
            self.line("fence_async_shared()")
        return keys, values, narrow

    def _first_tile(self, loop: KeyLoop) -> TritonScope:
        """The peeled first iteration, on the last keys: only their tile may be masked or go beyond the end."""
        outer, axis, parts = self.scope, self.axis, loop.parts
        first = TritonScope(outer.indent, outer.bound | {axis}, outside=outer)
        for text in (
            "slot = step % STAGES",
            "mbarrier.wait(keys_full.index(slot), (step // STAGES) & 1)",
            *self._scores(loop.keys, "slot"),
            f"{axis.name}_ = begin + (blocks - 1) * {self.block[axis.name]}",
        ):
            self.line(text, first)
        self.edge = True
        self._read_beside(first, parts.ready)
        if parts.own:
            before = len(outer.lines)
            factor = self.floated(self.kernel.builder.product(parts.own, []))
            first.lines += outer.lines[before:]  # here, not before the product
            del outer.lines[before:]
            self.line(f"factor = {factor.text}", first)
            self.factor = Tile("factor", ("m",), "float32")
        self.line(f"{loop.scores} = warpgroup_mma_wait(0, deps=[coming])", first)
        self.line("mbarrier.arrive(keys_empty.index(slot))", first)
        first.known[parts.score] = Tile(loop.scores, ("m", axis.name), "float32")
        self._body(first, loop, {}, outer)
        self.edge = False
        return first

    def _next_tiles(self, loop: KeyLoop, masks: dict[Expr, Expr]) -> TritonScope:
        """The body of the other iterations: their scores are in flight together with the product of the previous
        weights."""
        outer, axis, parts = self.scope, self.axis, loop.parts
        inner = TritonScope(outer.indent + 1, outer.bound | {axis}, outside=outer)
        inner.known[parts.score] = Tile(loop.scores, ("m", axis.name), "float32")
        for text in (
            "ahead = (step + 1) % STAGES",
            "mbarrier.wait(keys_full.index(ahead), ((step + 1) // STAGES) & 1)",
            *self._scores(loop.keys, "ahead"),
            "mbarrier.wait(values_full.index(slot), (step // STAGES) & 1)",
            *self._weighted(loop.values),
            f"{axis.name}_ = begin + (blocks - 1 - block) * {self.block[axis.name]}",
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
        first, *others = [(q, k.format(slot)) for q, k in zip(self.mine, keys, strict=True)]
        return [
            f"coming = warpgroup_mma({first[0]}, {first[1]}, {self._zeros()}, use_acc=False, is_async=True)",
            *(f"coming = warpgroup_mma({q}, {k}, coming, is_async=True)" for q, k in others),
        ]

    def _copied_queries(self, left: Sequence[Expr], own: Sequence[Expr], deep: str) -> str:
        """Load the queries by TMA ahead of their tile, if they are 16-bit boxes. Returns the variable of the loaded
        tile, "" if there is none."""
        (row,) = self.shape.rows
        loads = [e for e in walk([*left, *own]) if e.op == "load" and row in e.axes and not e.args]
        if len(loads) != 1 or ITEMSIZE.get(loads[0].value[3]) != 2:
            return ""
        for begin, columns in self.piece(deep):
            with self.resized(deep, columns, begin):
                named = self.box_of(loads[0].value[0], loads[0].value[1], loads[0].value[3])
            if named is None or tuple(self.dim_of(a) for a in named[1].axes) != ("m", deep):
                return ""
            self.asked.append(named[0])
        for e in walk(left):  # issue other loads while waiting for the queries
            if e.op == "load" and e is not loads[0] and e.axes <= self.top.bound:
                self.value(e)
        self.slots = 2 if self.turn != "0" and self.shared(2) <= target().shared_per_block else 1
        self.line(f"mbarrier.wait(queries_full.index({self.slot}), {self.phase})")
        if left != (loads[0],) or own:
            if len(self.asked) > 1:
                raise Unfusable("queries in pieces that are computed")
            self.line(f"raw = {self.mine[0]}.load(Q)")
        self.top.known[loads[0]] = Tile("raw", ("m", deep), loads[0].value[3])
        return "raw"

    def _done_with_queries(self) -> list[str]:
        return [f"mbarrier.arrive(queries_empty.index({self.slot}))"] if self.asked else []

    def _zeros(self) -> str:
        return f"tl.zeros([{GROUP}, {self.block[self.axis.name]}], tl.float32, layout=S)"

    def _bounds(self, ready: Sequence[Expr], top: Expr) -> dict[Expr, Expr] | None:
        """Emit the range of key tiles, iterated from last to first, so that masked tiles come first.

        Returns the masks that are redundant in the other tiles (all but the first if there is no `cut`), None if any
        tile may be masked.
        """
        here, step = TritonScope(1, set(self.scope.bound)), self.block[self.axis.name]
        with self.inside(here):
            parts = self.segments(ready, self.axis)
        begin, end = parts[0][0], parts[-1][1]
        texts = [line.strip() for line in here.lines]
        texts += [f"begin = {begin}", f"blocks = tl.maximum(({end} - begin + {step - 1}) // {step}, 1)"]
        if len(parts) == 2 and not self._one_cut(top):
            texts.append(f"cut = blocks - {parts[1][0]} // {step}")
        self.bounds = texts
        for text in texts:
            self.line(text)
        self.cut = texts[-1].startswith("cut")
        return parts[0][2] if len(parts) == 2 else None

    def _one_cut(self, top: Expr) -> bool:
        """Whether the mask cuts the last tile only: causal, with a program's rows aligned to the key tiles."""
        (row,) = self.shape.rows
        rooms = [r.rest for r in self._rooms(top, self.axis) if r.side == -1]
        return self.block[self.axis.name] % self.tall == 0 and rooms == [index(row)]

    def _read_beside(self, scope: TritonScope, ready: Sequence[Expr]) -> None:
        """Emit the key indices of a tile and its other loads (such as per-key biases), in flight while the products are
        waited for."""
        axis, seen, stack = self.axis, set[Expr](), [a for e in ready for a in e.args]
        keys = f"tl.arange(0, {self.block[axis.name]}, layout=tl.SliceLayout(0, S))"
        self.line(f"{axis.name} = {axis.name}_ + {keys}", scope)
        while stack:
            e = stack.pop()
            if e in seen or e.op == "reduce":
                continue
            seen.add(e)
            stack += e.args
            if e.op == "load" and not e.args and axis in e.axes <= {*self.shape.batch, axis}:
                with self.inside(scope):
                    self.value(e)

    def _running_max(
        self, e: Expr, axis: Axis, name: str, inner: TritonScope, outer: TritonScope | None
    ) -> tuple[Callable[[], Tile], Tile]:
        """The running maximum; with a per-row factor, of scores without the factor."""
        if self.factor is None:
            return super()._running_max(e, axis, name, inner, outer)
        power, scale = power_of(self.kernel, e), self.fresh("scale")
        with self.inside(inner):
            body, _ = self._factored(e.args[0], inner)
            a = self.floated(body)
            a = self.named(replace(a, text=self.neutral(e, a, self.dim_of(axis))))
            peak = f"{ACROSS['max'].format(a.text, a.dims.index(self.dim_of(axis)))} * {self.factor.text}"
            for text in (
                f"{name}_new = {COMBINE['max'].format(name, peak)}",
                f"{name}_safe = tl.where({name}_new == float('-inf'), 0.0, {name}_new)",
                f"{scale} = tl.{power}({name} - {name}_safe)",
                f"{name} = {name}_new",
            ):
                self.line(text)
            inner.known[e.args[0]] = Tile(f"{a.text} * {self.spread(self.factor, a.dims)}", a.dims, a.dtype)
            inner.known[e] = Tile(f"{name}_safe", ("m",), self.wide)
        if outer is not None:
            self.line(self._begin_at(name, ("m",), NEUTRAL["max"], self.wide), outer)
        return (lambda: Tile(name, ("m",), self.wide)), Tile(scale, ("m",), self.wide)

    def _body(self, inner: TritonScope, loop: KeyLoop, masks: dict[Expr, Expr], outer: TritonScope | None) -> None:
        """Emit the softmax update: maximum, sums, and the rescaling of the output accumulator. `outer` is where
        accumulators begin (first tile), None in other tiles."""
        axis = self.axis
        parts, top = loop.parts, loop.parts.top
        body = top.args[0]
        if masks and self.cut:
            inner.bound.discard(axis)  # mask operands are computed in the branch that needs them
            for head, known in (("if block < cut:", {}), ("else:", masks)):
                branch = TritonScope(inner.indent + 1, inner.bound | {axis}, outside=inner)
                with self.inside(branch):
                    branch.known.update({e: self.value(kept) for e, kept in known.items()})
                    self.line(f"logits = {self.floated(body).text}")
                self.line(head, inner)
                inner.lines += branch.lines
            inner.bound.add(axis)
            inner.known[body] = Tile("logits", ("m", axis.name), "float32")
        elif masks:
            with self.inside(inner):
                inner.known.update({e: self.value(kept) for e, kept in masks.items()})
        _, scale = self._running_max(top, axis, loop.names[top], inner, outer)
        for e in parts.ready:
            if e not in (top, parts.product):
                self._accumulate(e, axis, loop.names[e], inner, outer, scale)
        with self.inside(inner):
            weights = self.side(self.shape.dots[parts.product].left)
            if weights.dims != ("m", axis.name):
                raise Unfusable("weights that are not those of scores")
            if outer is None:
                self.line(self._arrived())
                self.line("mbarrier.arrive(values_empty.index(slot))")
            for i, (acc, taken) in enumerate(zip(self.sums, self.weights)):
                self.layouts["m", "n"], operand = (numbered(x, len(self.sums))[i] for x in "OP")
                if outer is None:
                    self.line(f"{acc} = {acc} * {self.spread(scale, ('m', 'n'))}")
                self.line(f"{taken} = tl.convert_layout({weights.atom}.to({loop.narrow}), {operand})")
