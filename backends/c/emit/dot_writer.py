"""Writes the C text of integer dot products: a row of floats is split into planes of 8-bit integers, and the sums of a
block are computed from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...ir.expr import Expr
from ...ir.index import Axis, Index
from .integer_dots import DotGroup, DotVector, IntegerDots


@dataclass(frozen=True)
class SplitRow:
    """Names of the C variables of a row of floats that is split into `planes` planes of 8-bit integers in `blocks`
    blocks (`dots_split` in backends/ir/c_dots.py).

    `row`: its floats. `digits`: the planes. `steps`: the step (scale) of each block. `totals`: sums of the integers by
    block and group of weights. `whole`: flag, whether the row could be split.
    """

    planes: int
    blocks: int
    row: str
    digits: str
    steps: str
    totals: str
    whole: str

    @staticmethod
    def named(fresh: Callable[[str], str], planes: int, blocks: int) -> SplitRow:
        """New variables for a row in `planes` planes and `blocks` blocks; `fresh` returns an unused name that begins
        with its argument."""
        return SplitRow(planes, blocks, *(fresh(n) for n in ("row", "digits", "steps", "totals", "whole")))

    def declared(self, dots: IntegerDots) -> list[str]:
        """C statements that declare these variables, except `row`, and split the row for the sum `dots`."""
        vectors, groups = len(dots.vectors), len(dots.groups)
        order = ", ".join(str(n) for v in dots.vectors for n in v.chunks)
        of = ", ".join(str(g) for v in range(vectors) for g, own in enumerate(dots.groups) if v in own.vectors)
        return [
            f"_Alignas(64) int8_t {self.digits}[{self.planes * self.blocks * vectors * 64}];",
            f"float {self.steps}[{self.blocks}];",
            f"floats {self.totals}[{self.blocks * groups}];",
            f"const int {self.whole} = DOTS && dots_split({self.row}, {self.blocks}, {vectors}, (const uint8_t[]){{{order}}}, "
            f"(const uint8_t[]){{{of}}}, {groups}, {self.planes}, {self.digits}, {self.steps}, {self.totals});",
        ]  # fmt: skip

    def summed(
        self, dots: IntegerDots, block: Axis, sums: str, value: Callable[[Expr], str], at: Callable[[Index], str],
        fresh: Callable[[str], str],
    ) -> list[str]:  # fmt: skip
        """C statements that add the products of one block of the sum `dots` to the variable `sums`.

        `block`: the axis over blocks. `value`: returns the C expression of a scale or offset; `at`: that of an index;
        `fresh`: an unused variable name that begins with its argument.
        """
        lines: list[str] = []
        read: dict[tuple[str, Index, int], str] = {}
        numbers = [_numbers(v, read, lines, at, fresh) for v in dots.vectors]
        size = 64 * len(dots.vectors)
        for g, group in enumerate(dots.groups):
            small = all(dots.vectors[v].mask < 64 for v in group.vectors)
            found = self._product(group, numbers, small, block, size, lines, fresh)
            scale, offset = (_quarters(values, value) for values in (group.scales, group.offsets))
            if offset != "lanes(0.0f)":
                at_total = f"{self.totals}[{block} * {len(dots.groups)} + {g}]"
                lines.append(f"{found} = lanes_fma({at_total}, -{offset}, {found});")
            lines.append(f"{sums} = lanes_fma({found}, {scale} * lanes({self.steps}[{block}]), {sums});")
        return lines

    def _product(
        self, group: DotGroup, numbers: Sequence[str], small: bool, block: Axis, size: int, lines: list[str],
        fresh: Callable[[str], str],
    ) -> str:  # fmt: skip
        """Variable with the sums of products of a group, as floats; its computation is appended to `lines`.

        `numbers`: variable of each vector; `small`: whether all of them are below 64; `size`: bytes of a block.
        """
        total = fresh("d")
        lines.append(f"ints {total} = {{0}};")
        for plane in range(2):
            if plane:
                lines.append(f"{total} = {total} << 8;")
            lines += self._plane(total, group, numbers, small, block, size, plane)
        found = fresh("l")
        if self.planes == 2:
            lines.append(f"floats {found} = lanes_float({total});")
            return found
        last = fresh("d")
        lines += [f"ints {last} = {{0}};", *self._plane(last, group, numbers, small, block, size, 2)]
        lines.append(f"floats {found} = lanes_fma(lanes_float({total}), lanes(256.0f), lanes_float({last}));")
        return found

    def _plane(
        self, total: str, group: DotGroup, numbers: Sequence[str], small: bool, block: Axis, size: int, plane: int
    ) -> list[str]:
        """C statements that add a group's products of one plane to `total`; two vectors at a time if all numbers are
        below 64 (`small`)."""
        start, found = plane * self.blocks * size, list[str]()
        parts = [f"{numbers[v]}, {self.digits} + {block} * {size} + {start + 64 * v}" for v in group.vectors]
        while parts:
            two = small and len(parts) > 1
            own = [parts.pop(0) for _ in range(1 + two)]
            found.append(f"{total} = {'dots_sum_small' if two else 'dots_sum'}({total}, {', '.join(own)});")
        return found


def _numbers(
    v: DotVector, read: dict[tuple[str, Index, int], str], lines: list[str], at: Callable[[Index], str], fresh: Callable[[str], str]
) -> str:  # fmt: skip
    """Variable with the numbers of a vector, one per byte; its definition is appended to `lines`.

    `read`: variables of bytes that are loaded already.
    """
    key = v.operand, v.at, v.flip
    if key not in read:
        read[key] = fresh("b")
        lines.append(f"const bytes {read[key]} = dots_read({v.operand} + {at(v.at)}, {v.flip});")
    if v.low == 0 and v.mask == 255:
        return read[key]
    name = fresh("n")
    lines.append(f"const bytes {name} = dots_bits({read[key]}, {v.low}, {v.mask});")
    return name


def _quarters(values: Sequence[Expr], value: Callable[[Expr], str]) -> str:
    """C text of a vector with one value for each quarter of its lanes."""
    if len(set(values)) == 1:
        return f"lanes({value(values[0])})"
    return f"dots_quarters({', '.join(value(v) for v in values)})"


__all__ = ["SplitRow"]
