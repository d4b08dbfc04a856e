"""Lists rules made of partially equivalent rewrites: the rewrite is wrong on a computable region, and the rule corrects
it there.

A rewrite that is right outside of a computable region, plus a correction of that region, is a sound rewrite (PET, OSDI
2021). The families here state the region in closed
form, as attribute expressions over sizes, strides, paddings and dilations, so they are ordinary rules:

- `seam`: windows over two images joined along a spatial axis are two results joined, except across the seam.
- `into-batch`: both halves of an image as a batch of two, except across the middle.
- `join`: two convolutions by one weight as one convolution of the joined images, except at the seam.
- `frame`: a border of nonzero constants as zero padding, except where windows read the border.

They create more kernels than they remove and are profitable only where launch overhead or parallelism dominates. So
they are not in `rules.ALL`; `tg.optimize(model, rules=partial.RULES)` uses them. The tests compute the wrong region of
each rewrite from its two programs and compare it with the closed form (tests/rules/partial_check.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ...egraph.patterns.pattern_attrs import Env, evaluate
from ...egraph.patterns.pattern_parser import parse_guard
from ...egraph.patterns.rule import Rule, table

Box = tuple[tuple[int, int], ...]  # per axis [start, stop)


@dataclass(frozen=True)
class Partial:
    """A partially equivalent rewrite.

    `rule` is the corrected rule, which holds everywhere. `mutants` are its right sides before the correction. `regions`
    holds, per mutant, the (start, stop) of the wrong rows along `axis`, as attribute expressions. A mutant may be ill
    typed where the region is longer than the axis; such instances are not compared.
    """

    rule: Rule
    mutants: tuple[str, ...]
    axis: int
    regions: tuple[tuple[str, str], ...]

    def region(self, which: int, env: Env, shape: Sequence[int]) -> list[Box]:
        """Boxes of the result in which right side number `which` differs from the left side.

        `env`: values of sizes and attributes. `shape`: of the result.
        """
        start, stop = (int(evaluate(parse_guard(b), env)) for b in self.regions[which])
        box = tuple((start, stop) if i == self.axis else (0, d) for i, d in enumerate(shape))
        return [box] if all(a < b for a, b in box) else []


# ---------------------------------------------------------------- the families
@dataclass(frozen=True)
class _Windows:
    """Builds the attribute expressions and terms for windows of a convolution or pooling along one spatial axis."""

    op: str
    axis: int

    @property
    def step(self) -> str:
        """Attribute expression of the window's stride along the axis."""
        return f"s[{self.axis - 2}]"

    @property
    def low(self) -> str:
        """Attribute expression of the padding before the first row (or column)."""
        return f"p[{self.axis - 2}]"

    @property
    def high(self) -> str:
        """The padding after the last row."""
        return f"p[{self.axis}]"

    @property
    def spread(self) -> str:
        """Attribute expression of the window's dilation along the axis."""
        return f"d[{self.axis - 2}]"

    @property
    def reach(self) -> str:
        """Distance from the first to the last element of a window."""
        return f"{self.spread} * ({self.size('w') if self.op == 'conv' else f'k[{self.axis - 2}]'} - 1)"

    @property
    def name(self) -> str:
        """Prefix of the names of the rules of this op and axis, such as "max-pool-rows"."""
        return f"{self.op.replace('_', '-')}-{self.lines}"

    @property
    def lines(self) -> str:
        """Name of the lines along the axis: rows or columns."""
        return "rows" if self.axis == 2 else "columns"

    def of(self, x: str, pads: str = "p") -> str:
        """The op applied to an image with this padding."""
        if self.op == "conv":
            return f"conv({x}, w, strides=s, pads={pads}, dilations=d, groups=g)"
        return f"{self.op}({x}, kernel=k, strides=s, pads={pads}, dilations=d)"

    def padded(self, low: str | None = None, high: str | None = None) -> str:
        """The padding with the given entries along the axis replaced."""
        i, found = self.axis - 2, "p"
        for place, value in ((i, low), (i + 2, high)):
            found = found if value is None else f"replace({found}, {place}, {value})"
        return found

    def rows(self, x: str, start: str, stop: str) -> str:
        """A range of rows (or columns) of a value."""
        return f"slice({x}, axis={self.axis}, start={start}, stop={stop})"

    def join(self, *parts: str) -> str:
        """The concatenation of values along the axis."""
        return parts[0] if len(parts) == 1 else f"concat({parts[0]}, {self.join(*parts[1:])}, axis={self.axis})"

    def size(self, x: str) -> str:
        """The number of rows of a variable."""
        return f"size({x}, {self.axis})"

    def positions(self, size: str) -> str:
        """The number of windows over `size` rows."""
        return f"({size} + {self.low} + {self.high} - {self.reach} - 1) // {self.step} + 1"

    def across(self, seam: str) -> str:
        """Index of the first window that reaches across a seam."""
        return f"({seam} + {self.low} - {self.reach} - 1) // {self.step} + 1"

    def behind(self, seam: str) -> str:
        """Index of the first window that begins at or after a seam."""
        return f"({seam} + {self.low} + {self.step} - 1) // {self.step}"

    def first(self, window: str) -> str:
        """The first row of a window."""
        return f"({window}) * {self.step} - {self.low}"

    def last(self, window: str) -> str:
        """One past the last row of the window that precedes this one."""
        return f"({window} - 1) * {self.step} - {self.low} + {self.reach} + 1"

    def spliced(self, before: str, whole: str, after: str, seam: str, size: str) -> str:
        """Concatenation of the windows before the seam, the windows across the seam (recomputed from the whole image)
        and those after it."""
        lo, hi = self.across(seam), self.behind(seam)
        middle = self.of(self.rows(whole, self.first(lo), self.last(hi)), self.padded("0", "0"))
        return self.join(
            self.rows(before, "0", lo), middle, self.rows(after, f"{hi} - {seam} // {self.step}", self.positions(size))
        )

    def splits(self, seam: str, size: str) -> tuple[str, ...]:
        """Guards: windows after the seam are aligned as in a separate image, and no part is empty."""
        lo, hi = self.across(seam), self.behind(seam)
        return ("rank(x) == 4", f"{seam} % {self.step} == 0", f"{lo} < {hi}", f"0 < {lo}", f"0 <= {self.first(lo)}",
                f"{lo} <= {self.positions(seam)}", f"{self.last(hi)} <= {seam} + {size}",
                f"{hi} - {seam} // {self.step} < {self.positions(size)}")  # fmt: skip


def _seam(w: _Windows) -> Partial:
    x, y = w.size("x"), w.size("y")
    whole = w.join("x", "y")
    rule = Rule(f"{w.name}-seam", w.of(whole), w.spliced(w.of("x"), whole, w.of("y"), x, y), when=w.splits(x, y), growth="expands",
                doc=f"{w.op} of concatenated {w.lines} is a concatenation of two results, except for the windows across the boundary")  # fmt: skip
    return Partial(rule, (w.join(w.of("x"), w.of("y")),), w.axis, ((w.across(x), w.behind(x)),))


def _into_batch(w: _Windows) -> Partial:
    x = w.size("x")
    half = f"{x} // 2"
    both = w.of(f"concat({w.rows('x', '0', half)}, {w.rows('x', half, x)}, axis=0)")
    parts = [f"slice({both}, axis=0, start={a}, stop={b})" for a, b in ((0, 1), (1, 2))]
    lo, hi = w.across(half), w.behind(half)
    shrinks = f"({hi} - ({lo}) - 1) * {w.step} + {w.reach} + 1 < {half}"  # guarantees termination
    rule = Rule(f"{w.name}-into-batch", w.of("x"), w.spliced(parts[0], "x", parts[1], half, half),
                when=(*w.splits(half, half), f"{x} % 2 == 0", "size(x, 0) == 1", shrinks), growth="expands",
                doc="both halves of an image are computed as a batch of two, except for the windows across the middle")  # fmt: skip
    return Partial(rule, (w.join(*parts),), w.axis, ((lo, hi),))


def _join(w: _Windows) -> Partial:
    x, y = w.size("x"), w.size("y")
    both, lo, hi, seam = w.of(w.join("x", "y")), w.across(x), w.behind("0"), f"{x} // {w.step}"
    upper = w.join(w.rows(both, "0", lo), w.of(w.rows("x", w.first(lo), x), w.padded(low="0")))
    lower = w.join(
        w.of(w.rows("y", "0", w.last(hi)), w.padded(high="0")),
        w.rows(both, f"{seam} + {hi}", f"{seam} + {w.positions(y)}"),
    )
    small = (
        f"{y} <= {x}",
        f"{x} + {y} < 64",
        f"{w.low} == {w.high}",
    )  # bounds growth: the results must not match again
    rule = Rule(f"{w.name}-join", (w.of("x"), w.of("y")), (upper, lower), growth="expands",
                when=("rank(x) == 4", f"drop(shape(x), {w.axis}) == drop(shape(y), {w.axis})", f"{x} % {w.step} == 0", *small,
                      f"0 < {w.low}", f"0 < {lo}", f"{lo} < {w.positions(x)}", f"0 <= {w.first(lo)}", f"{w.first(lo)} < {x}",
                      f"{hi} < {w.positions(y)}", f"{w.last(hi)} <= {y}"),
                doc=f"convolutions of two small images with one weight are one convolution of the concatenated images, except for {w.lines} at the boundary")  # fmt: skip
    mutants = (w.rows(both, "0", w.positions(x)), w.rows(both, seam, f"{seam} + {w.positions(y)}"))
    return Partial(rule, mutants, w.axis, ((lo, w.positions(x)), ("0", hi)))


def _frame(w: _Windows) -> Partial:
    x, stop = w.size("x"), w.behind("l")
    needed = f"{w.last(stop)} - l"
    top = w.of(f"pad({w.rows('x', '0', needed)}, axis={w.axis}, lo=l, hi=0, value=v)", w.padded(high="0"))
    inner = w.of("x", w.padded(low=f"{w.low} + l"))
    rule = Rule(f"{w.name}-frame", w.of(f"pad(x, axis={w.axis}, lo=l, hi=0, value=v)"),
                w.join(top, w.rows(inner, stop, w.positions(f"{x} + l"))), growth="expands",
                when=("rank(x) == 4", "0 < l", f"{w.spread} == 1", f"{w.low} <= {w.reach}", f"0 < {needed}", f"{needed} <= {x}",
                      f"{stop} < {w.positions(f'{x} + l')}"),
                doc="a constant border is zero padding, except for the windows that read the border")  # fmt: skip
    return Partial(rule, (inner,), w.axis, (("0", stop),))


def _families() -> Iterator[Partial]:
    for axis in (2, 3):
        for op in ("conv", "max_pool", "avg_pool"):
            yield _seam(_Windows(op, axis))
            yield _into_batch(_Windows(op, axis))
        yield _join(_Windows("conv", axis))
        yield _frame(_Windows("conv", axis))


PARTIAL: tuple[Partial, ...] = tuple(replace(p, rule=table("partial", "algebra", [p.rule])[0]) for p in _families())
RULES: tuple[Rule, ...] = tuple(p.rule for p in PARTIAL)
