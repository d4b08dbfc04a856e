"""Emits C for attention of few rows (decode steps): one pass over the positions, up to the last visible one.

The rows are the query heads that share keys and values, times the tokens of a step. Threads divide the remaining axes
(`batch`). For each of their elements:

    queries[rows][head]                                 once
    for (first = 0; first < end; first += BLOCK)        end: from a mask over a number in memory, say a cache's length
        keys, values [BLOCK][..]                        as float32, whatever they are computed from scores[rows][BLOCK]
        product with the queries, then scale, soft cap, mask weights, sums, results
        exponentials below the maximum so far (online softmax)

Rows of these arrays are padded with zeros to whole vectors; `backends/ir/c_attention.py` has the C functions of the
products.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from ...ir.expr import Expr, factors, walk
from ...ir.index import Axis, Index, index
from ...ir.kernel import Kernel
from ...ir.loop_fusion import exponential_of, index_bounds, shared_maximum
from ...ir.tiling import Shape, shape_of
from ...ir.unfusable import if_fusable
from .nest import LoopScope
from .packed_sums import PackedSums
from .spelling import stored

ROWS = 16  # maximum rows
BLOCK = 32  # positions of a block: its keys, values and scores stay in the first cache
WIDEST = 512  # maximum head size
PARALLEL = 500_000.0  # work (multiplications) from which several threads pay off


@dataclass(frozen=True)
class FewRowAttention:
    """Parts of a kernel that is attention of few rows.

    `score`: the products of `query` and `key` summed over the axis `head`; `maximum`: maximum of the masked scores over
    the axis `positions`; `total`: sum of the weights (None if nothing is divided by the sum); `result`: sum of
    `values`, over the axis `positions`, weighted by the scores' exponentials; `column`: axis of its elements. `batch`,
    `rows`: the other axes of the result.
    """

    batch: tuple[Axis, ...]
    rows: tuple[Axis, ...]
    column: Axis
    head: Axis
    positions: Axis
    score: Expr
    maximum: Expr
    total: Expr | None
    result: Expr
    query: Expr
    key: Expr
    values: Expr


def few_row_attention(kernel: Kernel, shape: Shape | None = None) -> FewRowAttention | None:
    """The parts of `kernel` if it is attention with at most `ROWS` query rows; None for other kernels.

    `shape`: roles of the kernel's axes (row, column, batch, reduction), by default computed here.
    """
    shape = if_fusable(shape_of, kernel) if shape is None else shape
    if shape is None or shape.kind != "attention" or shape.walks or shape.joined or len(kernel.stores) != 1:
        return None
    if len(shape.cols) != 1 or not 1 <= shape.m <= ROWS or kernel.stores[0].guards or kernel.stores[0].parts:
        return None
    if any(b.dtype == "float64" for b in kernel.buffers.values()):
        return None
    return _parts(kernel, shape)


def _parts(kernel: Kernel, shape: Shape) -> FewRowAttention | None:
    b, (column,) = kernel.builder, shape.cols
    maxima = [e for e in kernel.reductions if e.value[0] == "max"]
    if len(maxima) != 1 or maxima[0].axis not in shape.outer:
        return None
    maximum = maxima[0]
    positions = maximum.axis
    sums = [e for e in kernel.reductions if e is not maximum and e.axis == positions]
    scores = [e for e in shape.dots if positions in e.axes]
    if len(scores) != 1 or any(shared_maximum(e, positions) is not maximum for e in sums):
        return None
    score, dot = scores[0], shape.dots[scores[0]]
    outer = {*shape.batch, *shape.rows}
    query, key = b.product(dot.left, ()), b.product(dot.right, ())
    if not query.axes <= outer | {score.axis} or not key.axes <= {*shape.batch, positions, score.axis}:
        return None
    if any(x.op == "reduce" and positions in x.axes for e in (query, key) for x in walk([e])):
        return None
    totals, results = [], []
    for e in sums:
        rest = _beside_weights(kernel, e, maximum)
        if rest.op == "const" and rest.value == 1.0:
            totals.append(e)
        elif rest.axes <= {*shape.batch, positions, column} and not any(x.op == "reduce" for x in walk([rest])):
            results.append((e, rest))
        else:
            return None
    wide = max(score.axis.size, column.size) > WIDEST
    if len(results) != 1 or len(totals) > 1 or wide or not maximum.axes <= outer:
        return None
    (result, values), total = results[0], next(iter(totals), None)
    return FewRowAttention(
        shape.batch, shape.rows, column, score.axis, positions, score, maximum, total, result, query, key, values
    )


def _beside_weights(kernel: Kernel, e: Expr, maximum: Expr) -> Expr:
    """The product of the factors of a sum's body other than the exponential relative to `maximum`."""
    over, under = factors(e.args[0])
    return kernel.builder.product([f for f in over if maximum not in walk([f])], under)


def padded(size: int) -> int:
    """`size` rounded up to a multiple of 16, the length of a vector."""
    return -(-size // 16) * 16


class AttentionWriter(PackedSums):
    """Writer of the loops of a C function for attention of few rows (decode steps)."""

    sums: set[Expr] = set()  # scores and what is summed over positions

    def body(self, parts: FewRowAttention, top: LoopScope) -> None:
        """Write the loops of the attention with these parts into the function's block `top`."""
        self.parts, self.kept, self.columns = parts, {}, False
        self.count_of_rows = prod(a.size for a in parts.rows)
        self.widths = padded(parts.head.size), padded(parts.column.size)
        self.sums = {e for e in (parts.score, parts.maximum, parts.total, parts.result) if e is not None}
        scope = self._units(top)
        self._declare(scope)
        self._filled(scope, "queries", parts.query, {a: index(a) for a in parts.rows}, parts.head)
        end = self._end(scope)
        loop = scope.opened(None, f"for (long first = 0; first < {end}; first += {BLOCK})")
        loop.items.append(f"const long past = first + {BLOCK} < {end} ? first + {BLOCK} : {end};")
        self._block(loop)
        loop.close()
        self._stored(scope)
        self._closed(scope, top)

    def _place(self, e: Expr, scope: LoopScope) -> LoopScope:
        """Outermost scope in which a value is computed (`CValues._place`). Values that depend on scores, or on sums
        over positions, are computed in `scope` itself, since these are known there only."""
        return super()._place(e, scope) if self.sums.isdisjoint(walk([e])) else scope

    def _units(self, top: LoopScope) -> LoopScope:
        """Open one loop over all elements of the batch axes, which threads divide; returns the block of one element."""
        parts, units = self.parts, prod(a.size for a in self.parts.batch)
        work = 2.0 * units * self.count_of_rows * parts.positions.size * (parts.head.size + parts.column.size)
        shared = ["#pragma omp parallel for schedule(static)"] if units > 1 and work >= PARALLEL else []
        scope = top.opened(None, *shared, f"for (long unit = 0; unit < {units}; unit++)")
        after = units
        for axis in parts.batch:
            after //= axis.size
            scope.items.append(f"const long {axis} = unit / {after} % {axis.size};")
        for axis in parts.batch:
            scope = scope.opened(axis, "")
        return scope

    def _declare(self, scope: LoopScope) -> None:
        rows, (head, columns) = self.count_of_rows, self.widths
        sizes = {"queries": rows * head, "keys": BLOCK * head, "values": BLOCK * columns, "scores": rows * BLOCK,
                 "results": rows * columns, "fades": rows, "most": rows, "sums": rows}  # fmt: skip
        scope.items += [f"_Alignas(64) float {name}[{size}];" for name, size in sizes.items()]
        for name in ("queries", "keys", "values", "results"):
            scope.items.append(f"__builtin_memset({name}, 0, sizeof {name});")
        scope.items.append(f"for (int r = 0; r < {rows}; r++) most[r] = -INFINITY, sums[r] = 0.0f;")

    def _row(self) -> str:
        """C text of the index of the current row inside the loops over the axes of rows."""
        at, step = index(0), 1
        for axis in reversed(self.parts.rows):
            at, step = at + index(axis) * step, step * axis.size
        return f"({self._at(at)})"

    def _over(
        self, scope: LoopScope, axes: Sequence[Axis], ends: Mapping[Axis, tuple[str, str]] | None = None
    ) -> LoopScope:
        """Open nested loops over axes and return the innermost block.

        `ends`: axis -> (start, end) as C text; other axes run from 0 to their size.
        """
        for axis in axes:
            start, end = (ends or {}).get(axis, ("0", str(axis.size)))
            scope = scope.opened(axis, f"for (long {axis} = {start}; {axis} < {end}; {axis}++)")
        return scope

    def _closed(self, scope: LoopScope, outer: LoopScope) -> None:
        """Close `scope` and its enclosing blocks inside `outer`."""
        while scope is not outer:
            scope.close()
            assert scope.parent is not None
            scope = scope.parent

    def _filled(
        self, scope: LoopScope, name: str, value: Expr, lines: Mapping[Axis, Index], along: Axis, block: bool = False
    ) -> None:  # fmt: skip
        """Write loops that fill the array `name` with a value, one line along the axis `along` for each row, or with
        `block` for each position of a block. `lines`: the axes of the outer loops."""
        ends = dict.fromkeys(lines, ("first", "past")) if block else {}
        inside = self._over(scope, [*lines, along], ends)
        line = f"({next(iter(lines))} - first)" if block else self._row()
        inside.items.append(f"{name}[{line} * {padded(along.size)} + {along}] = {self.value(value, inside)};")
        self._vector(inside)
        self._closed(inside, scope)

    def _end(self, scope: LoopScope) -> str:
        """C text of the end of the loop over positions: a variable with the first position from which on everything is
        masked for all rows, or the number of positions if no mask allows that."""
        parts = self.parts
        known = {*parts.batch, *parts.rows}
        bounds = [
            (number, at - index(parts.positions), strict)
            for at, number, strict in index_bounds(parts.maximum.args[0], hiding=True)
            if at.coefficient(parts.positions) == 1
            and (at - index(parts.positions)).axes | number.axes <= known
        ]  # fmt: skip
        size = parts.positions.size
        if not bounds:
            return str(size)
        scope.items.append("long end = 0;")
        axes = [a for a in parts.rows if any(a in at.axes | n.axes for n, at, _ in bounds)]
        inside = self._over(scope, axes) if axes else scope.opened(None, "")
        inside.items.append(f"long seen = {size};")
        for number, at, strict in bounds:
            name, none = (
                self._fresh("n"),
                f"({self._at(at - (not strict))})",
            )  # a mask over numbers up to `none` hides every key
            inside.items += [
                f"const long {name} = {self.value(number, inside)};",  # any number: what it is compared with is small
                f"if ({name} < {none} + seen) seen = {name} < {none} ? 0 : {name} - {none};",
            ]
        inside.items.append("end = seen > end ? seen : end;")
        self._closed(inside, scope)
        return "end"

    def _block(self, loop: LoopScope) -> None:
        """Write the computation of scores, weights and results for a block of positions."""
        p, rows, (head, columns) = self.parts, self.count_of_rows, self.widths
        positions = {p.positions: index(p.positions)}
        self._filled(loop, "keys", p.key, positions, p.head, block=True)
        self._filled(loop, "values", p.values, positions, p.column, block=True)
        scores = loop.opened(None, "")
        scores.items.append(f"few_row_scores(queries, keys, scores, {rows}, {head}, {BLOCK});")
        inside = self._over(scores, [*p.rows, p.positions], {p.positions: ("first", "past")})
        place = f"scores[{self._row()} * {BLOCK} + {p.positions} - first]"
        name = self._fresh("s")
        inside.items.append(f"const float {name} = {place};")
        inside.known[p.score] = name
        inside.items.append(f"{place} = {self.value(p.maximum.args[0], inside)};")
        self._vector(inside)
        self._closed(inside, scores)
        scores.close()
        self._weighted(loop)
        loop.items.append(
            f"few_row_values(scores, values, fades, results, {rows}, {columns}, {BLOCK}, (int)(past - first));"
        )

    def _weighted(self, loop: LoopScope) -> None:
        """Write the online softmax of a block: scores are replaced by exponentials relative to the maximum so far, and
        earlier sums are rescaled by `fades` if the maximum has grown."""
        power = exponential_of(self.kernel, self.parts.maximum)
        below = self.spelling.operation(power, "float", ["(s[i] - shift)"])
        fade = self.spelling.operation(power, "float", ["(before - shift)"])
        inside = loop.opened(None, f"for (int r = 0; r < {self.count_of_rows}; r++)")
        inside.items += [
            f"float *restrict const s = scores + r * {BLOCK};",
            "const int count = (int)(past - first);",
            "const float before = most[r];",
            "float top = before, sum = 0.0f;",
            "#pragma omp simd reduction(max:top)",
            "for (int i = 0; i < count; i++) top = s[i] > top ? s[i] : top;",
            "const float shift = top == -INFINITY ? 0.0f : top;",
            "#pragma omp simd reduction(+:sum)",
            f"for (int i = 0; i < count; i++) {{ const float w = {below}; s[i] = w; sum += w; }}",
            f"fades[r] = {fade};",
            "sums[r] = sums[r] * fades[r] + sum;",
            "most[r] = top;",
        ]
        inside.close()

    def _stored(self, scope: LoopScope) -> None:
        """Write the loops that compute and store the results of all rows."""
        p, (store,) = self.parts, self.kernel.stores
        inside = self._over(scope, [*p.rows, p.column])
        row = self._row()
        inside.known[p.maximum] = f"most[{row}]"
        if p.total is not None:
            inside.known[p.total] = f"sums[{row}]"
        inside.known[p.result] = f"results[{row} * {self.widths[1]} + {p.column}]"
        value = stored(self.value(store.value, inside), self.kernel.buffers[store.buffer].dtype)
        inside.items.append(f"{store.buffer}[{self._at(store.at)}] = {value};")
        self._vector(inside)
        self._closed(inside, scope)


__all__ = ["AttentionWriter", "FewRowAttention", "few_row_attention"]
