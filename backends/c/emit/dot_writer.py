"""Writes the C text of integer dot products: a row of floats is split into planes of 8-bit integers, and the sums of a
block are computed from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...ir.expr import Expr
from ...ir.index import Axis, Index
from .integer_dots import DotGroup, DotVector, IntegerDots

FEW = 64  # numbers below it are multiplied as bytes, whose products with a digit are summed in 16 bits
#: dtype in memory -> helper that loads four neighbours.
FOURS = {"float32": "fours_f32", "bfloat16": "fours_bf16", "float16": "fours_f16"}
OVERFLOW = 32767 // (2 * 128)  # the largest sum of numbers of which two products each with a digit fit into 16 bits


@dataclass(frozen=True)
class SplitRow:
    """Names of the C variables of a row of floats that is split into `planes` planes of 8-bit integers in `blocks`
    blocks (`dots_split` in backends/ir/c_dots.py).

    `row`: its floats. `digits`: the planes; `words`: those of the highest two digits are words of 16 bits, where the
    processor multiplies these faster (`dots_words`), because some number of a weight is 64 or more. `steps`: the step
    (scale) of each block. `totals`: sums of the integers by block and group of weights. `whole`: flag, whether the row
    could be split. `rows`: the axis over several rows, None for one; variables then have the rows one after the other,
    and `whole` is for all of them.
    """

    planes: int
    blocks: int
    words: bool
    rows: Axis | None
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
    def named(
        fresh: Callable[[str], str], planes: int, blocks: int, dots: IntegerDots, rows: Axis | None
    ) -> SplitRow:  # fmt: skip
        """New variables for a row, or `rows`, in `planes` planes and `blocks` blocks, the factor of the sum `dots`;
        `fresh` returns an unused name that begins with its argument."""
        names = (fresh(n) for n in ("row", "digits", "steps", "totals", "whole"))
        return SplitRow(planes, blocks, SplitRow.in_words(dots), rows, *names)

    def _at(self, name: str, size: int, row: str = "") -> str:
        """C text of the address of the part of an array, `size` elements a row, that belongs to a row: the one in
        variable `row`, by default that of the axis over rows."""
        return name if self.rows is None else f"{name} + {row or self.rows} * {size}"

    def arrays(self, dots: IntegerDots) -> list[str]:
        """C statements that declare these variables, except `row` and `whole`, for the sum `dots`."""
        rows = 1 if self.rows is None else self.rows.size
        return [
            f"_Alignas(64) int8_t {self.digits}[{rows * self._bytes(dots)}];",
            f"float {self.steps}[{rows * self.blocks}];",
            f"floats {self.totals}[{rows * self.blocks * len(dots.groups)}];",
        ]

    def filled(self, dots: IntegerDots) -> str:
        """C expression that splits the row for the sum `dots`, and tells whether that is possible."""
        vectors, groups = len(dots.vectors), len(dots.groups)
        order = ", ".join(str(n) for v in dots.vectors for n in v.chunks)
        of = ", ".join(str(g) for v in range(vectors) for g, own in enumerate(dots.groups) if v in own.vectors)
        to = (
            self._at(self.digits, self._bytes(dots)),
            self._at(self.steps, self.blocks),
            self._at(self.totals, self.blocks * groups),
        )
        return (
            f"dots_split({self.row}, {self.blocks}, {vectors}, (const uint8_t[]){{{order}}}, (const uint8_t[]){{{of}}}, "
            f"{groups}, {self.planes}, {int(self.words)}, {', '.join(to)})"
        )

    def _bytes(self, dots: IntegerDots) -> int:
        """Bytes of the planes of a row."""
        return self.planes * self.blocks * len(dots.vectors) * 64

    def summed(
        self, dots: IntegerDots, block: Axis, sums: str, value: Callable[[Expr], str], at: Callable[[Index], str],
        fresh: Callable[[str], str],
    ) -> list[str]:  # fmt: skip
        """C statements that add the products of one block of the sum `dots` to the variable `sums`, of type `evens`; of
        several rows to an array of such variables.

        `block`: the axis over blocks. `value`: returns the C expression of a scale or offset; `at`: that of an index;
        `fresh`: an unused variable name that begins with its argument.
        """
        lines: list[str] = []
        read: dict[tuple[str, Index, int], str] = {}
        numbers = [_numbers(v, read, lines, at, fresh) for v in dots.vectors]
        if self.rows is None:
            for g, group in enumerate(dots.groups):
                scale = _scale(group, dots.even, value, at)
                lines += self._added(g, scale, dots, numbers, block, sums, value, fresh, "")
            return lines
        row, inside = fresh("m"), list[str]()
        for g, group in enumerate(dots.groups):
            name = fresh("c")
            scale = _scale(group, dots.even, value, at)
            lines.append(f"const evens {name} = evens_all({scale});" if dots.even else f"const quads {name} = {scale};")
            inside += self._added(g, name, dots, numbers, block, f"{sums}[{row}]", value, fresh, row)
        return [
            *lines,
            f"for (long {row} = 0; {row} < {self.rows.size}; {row}++) {{",
            *(f"    {x}" for x in inside),
            "}",
        ]

    def _added(
        self, g: int, scale: str, dots: IntegerDots, numbers: Sequence[str], block: Axis, sums: str,
        value: Callable[[Expr], str], fresh: Callable[[str], str], row: str,
    ) -> list[str]:  # fmt: skip
        """C statements that add the products of group `g` with one row, that of the variable `row` if there are
        several."""
        lines, group, count = list[str](), dots.groups[g], len(dots.groups)
        kind = "evens" if dots.even else "quads"
        found = self._product(group, dots, numbers, block, kind, lines, fresh, row)
        step = f"{self.steps}[{block}]" if not row else f"{self.steps}[{row} * {self.blocks} + {block}]"
        if any(o.op != "const" or o.value for o in group.offsets):
            first = "" if not row else f"{row} * {self.blocks * count} + "
            total = f"{kind}_of({self.totals}[{first}{block} * {count} + {g}])"
            offset = _spread([f"-({value(o)})" for o in (group.offsets[:1] if dots.even else group.offsets)])
            lines.append(f"{found} = {kind}_fma({total}, {offset}, {found});")
        if dots.even and row:
            lines.append(f"{sums} = evens_fma({found} * {scale}, evens_all({step}), {sums});")
        elif dots.even:
            lines.append(f"{sums} = evens_fma({found}, evens_all({scale} * {step}), {sums});")
        else:
            lines.append(f"{sums} = quads_scaled({found}, {scale}, {step}, {sums});")
        return lines

    def _product(
        self, group: DotGroup, dots: IntegerDots, numbers: Sequence[str], block: Axis, kind: str, lines: list[str],
        fresh: Callable[[str], str], row: str,
    ) -> str:  # fmt: skip
        """Variable of type `kind` with the sums of products of a group; its computation is appended to `lines`.

        `numbers`: variable of each vector of the sum `dots`. `row`: variable of the row, if there are several.
        """
        size, total = 64 * len(dots.vectors), fresh("d")
        parts = [(numbers[v], f"{block} * {size} + {64 * v}") for v in group.vectors]
        digits = self._at(self.digits, self._bytes(dots), row)
        low = self.blocks * size  # bytes from one plane to the next
        most = len(parts) if self.words else OVERFLOW // max(dots.vectors[v].mask for v in group.vectors)
        joined = bool(row) and dots.even and not self.words and self.planes == 2 and 2 * len(parts) <= most
        for first in range(0, len(parts), most):
            own, sums = parts[first : first + most], fresh("s")
            lines.append(f"{'word_sums' if self.words else 'digit_sums'} {sums} = {{0}};")
            call = (
                f"dots_words({{}}, {{}}, {digits}, {{}}, {low})"
                if self.words
                else f"dots_few({{}}, {{}}, {digits} + {{}}, {low})"
            )
            lines += [f"{sums} = {call.format(sums, x, y)};" for x, y in own]
            if joined:
                lines.append(f"evens {total} = dots_evens_of_few({sums});")
                return total
            found = f"dots_of_{'words' if self.words else 'few'}({sums})"
            lines.append(f"{total} = dots_plus({total}, {found});" if first else f"int_sums {total} = {found};")
        name, result = fresh("l"), f"dots_{kind}({total})"
        if self.planes == 3:
            last = fresh("d")
            lines.append(f"int_sums {last} = {{0}};")
            lines += [f"{last} = dots_sum({last}, {x}, {digits} + {2 * low} + {y});" for x, y in parts]
            result = f"{kind}_fma({result}, {kind}_all(256.0f), dots_{kind}({last}))"
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


def _scale(group: DotGroup, even: bool, value: Callable[[Expr], str], at: Callable[[Index], str]) -> str:
    """C text of the scale of a group: of type float if it is `even`, else one for each quarter of a vector (quads)."""
    if even:
        return value(group.scales[0])
    neighbours = group.scales_at()
    if neighbours is not None and neighbours[0] in FOURS:
        dtype, operand, first = neighbours
        return f"quads_read({FOURS[dtype]}({operand} + {at(first)}))"
    return _spread([value(x) for x in group.scales])


def _spread(values: Sequence[str]) -> str:
    """C text of a vector of one value (evens), or of one for each quarter of its lanes (quads)."""
    if len(values) == 1:
        return f"evens_all({values[0]})"
    return f"quads_all({values[0]})" if len(set(values)) == 1 else f"quads_read((fours){{{', '.join(values)}}})"


__all__ = ["SplitRow"]
