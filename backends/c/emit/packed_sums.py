"""Writes sums in blocks (emit/blocked.py), whose operands are packed numbers: integer dot products where these pay,
else vectors of floats.

Of few rows, one after the other along the innermost loop of a kernel, all sums are computed before that loop, so that
each number of a weight is read and unpacked once for all of them.
"""

from __future__ import annotations

from math import prod

from ...ir.expr import Expr
from ...ir.index import Axis
from ...ir.kernel import Kernel
from .blocked import BlockedSum, blocked
from .dot_writer import SplitRow
from .few_rows import few_rows
from .integer_dots import IntegerDots, integer_dots
from .lanes import LaneWriter
from .nest import LoopScope
from .values import CValues, product_of

SUMS = 8  # sums over packed numbers from which splitting the row into integers pays


class PackedSums(CValues):
    """Writer of the C statements of sums in blocks."""

    def _blocked(self, e: Expr, parts: BlockedSum, place: LoopScope) -> str:
        """Write a sum in blocks, a loop over blocks with a vector of accumulators; returns the sum's variable.

        If integer dot products pay, a loop in integers comes first, and the loop in floats is its fallback.
        Raises Unfusable for operations without a text over vectors.
        """
        sums, total = self._fresh("sums"), self._fresh("v")
        place.items.append(f"floats {sums} = lanes(0.0f);")
        rows = self.few_rows if self.few_rows in e.axes and place.axis is self.few_rows else None
        worth = self.integers and prod(a.size for a in place.bound if a is not rows) >= SUMS
        found = integer_dots(self.kernel.builder, e, parts, rows) if worth else None
        if found is None:
            self._lane_loop(parts, sums, place, "")
            place.items.append(f"const float {total} = lanes_sum({sums});")
            return total
        whole, result = self._integers(e, parts, found, sums, place, rows)
        self._lane_loop(parts, sums, place, whole)
        place.items.append(f"const float {total} = {result};")
        return total

    def _integers(
        self, e: Expr, parts: BlockedSum, found: IntegerDots, sums: str, place: LoopScope, rows: Axis | None
    ) -> tuple[str, str]:  # fmt: skip
        """Write the sum of integer dot products `found`; returns (variable that is true if it is computed, C expression
        of the sum, which is that of the floats' accumulators `sums` if it is not)."""
        if rows is None:
            own = self._fresh("sums")
            place.items.append(f"evens {own} = evens_all(0.0f);")
            whole = self._integer_loop(e, parts, found, own, place, None)
            return whole, f"{whole} ? evens_sum({own}) : lanes_sum({sums})"
        assert place.parent is not None
        own, before = self._fresh("sums"), place.parent
        before.items.append(f"evens {own}[{rows.size}] = {{{{0}}}};")
        whole = self._integer_loop(e, parts, found, own, before, rows)
        return whole, f"{whole} ? evens_sum({own}[{rows}]) : lanes_sum({sums})"

    def _lane_loop(self, parts: BlockedSum, sums: str, place: LoopScope, unless: str) -> None:
        """Write the loop over blocks in floats.

        `unless`: variable of the condition under which the loop is skipped; "" for none.
        """
        loop = _block_loop(place, parts.block, f"!{unless}" if unless else "")
        lanes = LaneWriter(parts.lane, lambda e: self.value(e, loop), self._fresh)
        part = "lanes(0.0f)"
        for body in parts.bodies:
            x, y = product_of(body) or (body, self.kernel.builder.const(1.0))
            text, part = f"lanes_fma({lanes.vector(x)}, {lanes.vector(y)}, {part})", lanes.fresh("l")
            lanes.lines.append(f"const floats {part} = {text};")
        scale = " * ".join(self.value(f, loop) for f in parts.shared)
        loop.items += [
            *lanes.lines,
            f"{sums} = lanes_fma({part}, lanes({scale}), {sums});" if scale else f"{sums} += {part};",
        ]
        loop.close()

    def _integer_loop(
        self, e: Expr, parts: BlockedSum, dots: IntegerDots, sums: str, place: LoopScope, rows: Axis | None
    ) -> str:  # fmt: skip
        """Write the loop over blocks in integers and, before all loops, the splitting of the row, or of all `rows`,
        into planes of integers. Returns the variable that is true if the loop runs."""
        narrow = any(b.dtype in ("float16", "bfloat16") for b in self.kernel.buffers.values())
        planes = 2 if narrow else 3  # 16 or 24 bits
        order = tuple(v.chunks for v in dots.vectors), tuple(g.vectors for g in dots.groups)
        key = e.axis, dots.row, order, SplitRow.in_words(dots)
        if key not in self.split:
            made = SplitRow.named(self._fresh, planes, parts.block.size, dots, rows)
            self.split[key] = made
            self._split(e.axis, dots, made, place)
        split: SplitRow = self.split[key]
        loop = _block_loop(place, parts.block, split.whole)
        lines = split.summed(dots, parts.block, sums, lambda x: self.value(x, loop), self._at, self._fresh)
        loop.items += lines
        loop.close()
        return split.whole

    def _split(self, axis: Axis, dots: IntegerDots, made: SplitRow, place: LoopScope) -> None:
        """Write the splitting of a row, or of all rows one after the other, before the loops around `place`."""
        top = place
        while top.parent is not None:
            top = top.parent
        rows, around = made.rows, top
        if rows is not None:
            top.items += [*made.arrays(dots), f"int {made.whole} = DOTS;"]
            around = top.opened(rows, f"for (long {rows} = 0; {rows} < {rows.size}; {rows}++)")
        around.items.append(f"float {made.row}[{axis.size}];")
        fill = around.opened(axis, f"for (long {axis} = 0; {axis} < {axis.size}; {axis}++)")
        fill.items.append(f"{made.row}[{axis}] = {self.value(dots.row, fill)};")
        self._vector(fill)
        fill.close()
        if rows is None:
            top.items += [*made.arrays(dots), f"const int {made.whole} = DOTS && {made.filled(dots)};"]
        else:
            around.items.append(f"{made.whole} = {made.whole} && {made.filled(dots)};")
            around.close()


def multiplies_few_rows(kernel: Kernel) -> bool:
    """Whether all reductions of a kernel are products of a few rows with packed weights, by integer dot products."""
    rows, b = few_rows(kernel), kernel.builder
    found = [(e, blocked(b, e)) for e in kernel.reductions] if rows is not None else []
    return bool(found) and all(p is not None and integer_dots(b, e, p, rows) is not None for e, p in found)


def _block_loop(place: LoopScope, block: Axis, condition: str) -> LoopScope:
    """Open a loop over blocks, which runs if the C expression `condition` is true ("": always)."""
    head = [f"if ({condition})"] if condition else []
    return place.opened(block, *head, f"for (long {block} = 0; {block} < {block.size}; {block}++)")


__all__ = ["PackedSums", "multiplies_few_rows"]
