"""Writes the C text of integer dot products: a row of floats is split into planes of 8-bit integers, and the sums of a
block are computed from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...ir.expr import Expr
from ...ir.index import Axis, Index
from .integer_dots import DotGroup, DotVector, IntegerDots

FEW = 64  # numbers below it are multiplied as bytes, whose products with a digit are summed in 16 bits
OVERFLOW = 32767 // (2 * 128)  # the largest sum of numbers of which two products each with a digit fit into 16 bits


@dataclass(frozen=True)
class SplitRow:
    """Names of the C variables of a row of floats that is split into `planes` planes of 8-bit integers in `blocks`
    blocks (`dots_split` in backends/ir/c_dots.py).

    `row`: its floats. `digits`: the planes; `words`: those of the highest two digits are words of 16 bits, where the
    processor multiplies these faster (`dots_words`), because some number of a weight is 64 or more. `steps`: the step
    (scale) of each block. `totals`: sums of the integers by block and group of weights. `whole`: flag, whether the row
    could be split.
    """

    planes: int
    blocks: int
    words: bool
    row: str
    digits: str
    steps: str
    totals: str
    whole: str

    @staticmethod
    def in_words(dots: IntegerDots) -> bool:
        """Whether the sum `dots` multiplies words: some number of its weights is too large for 16-bit sums of bytes."""
        return any(v.mask >= FEW for v in dots.vectors)

    @staticmethod
    def named(fresh: Callable[[str], str], planes: int, blocks: int, dots: IntegerDots) -> SplitRow:
        """New variables for a row in `planes` planes and `blocks` blocks, the factor of the sum `dots`; `fresh` returns
        an unused name that begins with its argument."""
        return SplitRow(
            planes, blocks, SplitRow.in_words(dots), *(fresh(n) for n in ("row", "digits", "steps", "totals", "whole"))
        )

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
            f"(const uint8_t[]){{{of}}}, {groups}, {self.planes}, {int(self.words)}, {self.digits}, {self.steps}, {self.totals});",
        ]  # fmt: skip

    def summed(
        self, dots: IntegerDots, block: Axis, sums: str, value: Callable[[Expr], str], at: Callable[[Index], str],
        fresh: Callable[[str], str],
    ) -> list[str]:  # fmt: skip
        """C statements that add the products of one block of the sum `dots` to the variable `sums`: `evens` if
        `dots.even`, else `floats`.

        `block`: the axis over blocks. `value`: returns the C expression of a scale or offset; `at`: that of an index;
        `fresh`: an unused variable name that begins with its argument.
        """
        lines: list[str] = []
        read: dict[tuple[str, Index, int], str] = {}
        numbers = [_numbers(v, read, lines, at, fresh) for v in dots.vectors]
        kind, fma = ("evens", "evens_fma") if dots.even else ("floats", "lanes_fma")
        for g, group in enumerate(dots.groups):
            found, step = self._product(group, dots, numbers, block, kind, lines, fresh), f"{self.steps}[{block}]"
            if dots.even:
                scale, offset = (
                    f"evens_all({value(group.scales[0])} * {step})",
                    f"evens_all(-({value(group.offsets[0])}))",
                )
            else:
                scale, offset = (_quarters(values, value) for values in (group.scales, group.offsets))
                scale, offset = f"{scale} * lanes({step})", f"-{offset}"
            if any(o.op != "const" or o.value for o in group.offsets):
                total = f"{self.totals}[{block} * {len(dots.groups)} + {g}]"
                lines.append(f"{found} = {fma}({f'evens_of({total})' if dots.even else total}, {offset}, {found});")
            lines.append(f"{sums} = {fma}({found}, {scale}, {sums});")
        return lines

    def _product(
        self, group: DotGroup, dots: IntegerDots, numbers: Sequence[str], block: Axis, kind: str, lines: list[str],
        fresh: Callable[[str], str],
    ) -> str:  # fmt: skip
        """Variable of type `kind` with the sums of products of a group; its computation is appended to `lines`.

        `numbers`: variable of each vector of the sum `dots`.
        """
        size, total = 64 * len(dots.vectors), fresh("d")
        parts = [(numbers[v], f"{block} * {size} + {64 * v}") for v in group.vectors]
        low = self.blocks * size  # bytes from one plane to the next
        most = len(parts) if self.words else OVERFLOW // max(dots.vectors[v].mask for v in group.vectors)
        for first in range(0, len(parts), most):
            own, sums = parts[first : first + most], fresh("s")
            lines.append(f"{'word_sums' if self.words else 'digit_sums'} {sums} = {{0}};")
            call = (
                f"dots_words({{}}, {{}}, {self.digits}, {{}}, {low})"
                if self.words
                else f"dots_few({{}}, {{}}, {self.digits} + {{}}, {low})"
            )
            lines += [f"{sums} = {call.format(sums, x, y)};" for x, y in own]
            found = f"dots_of_{'words' if self.words else 'few'}({sums})"
            lines.append(f"{total} = dots_plus({total}, {found});" if first else f"int_sums {total} = {found};")
        name, result = fresh("l"), f"dots_{kind}({total})"
        if self.planes == 3:
            last = fresh("d")
            lines.append(f"int_sums {last} = {{0}};")
            lines += [f"{last} = dots_sum({last}, {x}, {self.digits} + {2 * low} + {y});" for x, y in parts]
            fma, spread = ("evens_fma", "evens_all") if dots.even else ("lanes_fma", "lanes")
            result = f"{fma}({result}, {spread}(256.0f), dots_{kind}({last}))"
        lines.append(f"{kind} {name} = {result};")
        return name


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
