"""Regions of an output on which two programs may differ, computed by interval arithmetic over receptive fields.

After PET (Wang et al., "PET: Optimizing Tensor Programs with Partially Equivalent Transformations and Automated
Corrections", OSDI 2021, https://www.usenix.org/conference/osdi21/presentation/wang). PET finds the boxes on which a
mutant equals its original by testing a few positions per box; here the boxes are computed:

- `pieces` cuts an output into boxes on each of which one *form* holds: which elements are read, multiplied and summed,
  with indices affine in the output position. Indices are traced from the output to the leaves by interval arithmetic
  over the box (strides, paddings, dilations, concat boundaries, mixed-radix digits of reshapes). Where a decision
  differs within the box, the box is cut at that position. The number of boxes depends on kernels and concat boundaries,
  not on sizes.
- `wrong_region` is where the forms of two programs differ. Equal forms are equal values, so outside of it the rewrite
  is right for every input. Different forms have different values for almost all inputs, except for identities that
  forms do not express: up to these the region is tight.
- `corrected` splices: the mutant where it is right, elsewhere the original restricted to its receptive field.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

from tensor_graphs.egraph.builders import builders as api
from tensor_graphs.egraph.ir.tensor import LEAVES, Tensor, make
from tensor_graphs.egraph.ops.index_maps import AffineMap, BroadcastMap, ConcatMap
from tensor_graphs.egraph.types.dims import concrete
from tensor_graphs.errors import UsageError

Box = tuple[tuple[int, int], ...]  # per axis [start, stop)
Form = Any  # nested tuples: equal forms are equal values


# ---------------------------------------------------------------- indices
@dataclass(frozen=True)
class Index:
    """An affine index: offset + sum of stride * symbol. Symbols 0, 1, … are the output's axes, later symbols are
    summation indices."""

    offset: int
    strides: tuple[tuple[int, int], ...] = ()

    def __add__(self, other: Index | int) -> Index:
        if isinstance(other, int):
            return Index(self.offset + other, self.strides)
        total = Counter(dict(self.strides))
        for symbol, stride in other.strides:
            total[symbol] += stride
        return Index(self.offset + other.offset, tuple(sorted((k, v) for k, v in total.items() if v)))

    def __mul__(self, factor: int) -> Index:
        return Index(self.offset * factor, tuple((k, v * factor) for k, v in self.strides if factor))


class Cut(Exception):
    """Raised when a decision differs within the box: cut the range of `symbol` at `place`."""

    def __init__(self, symbol: int, place: int) -> None:
        self.symbol, self.place = symbol, place


@dataclass
class Ranges:
    """The range [start, stop) of each symbol."""

    of: dict[int, tuple[int, int]]

    def span(self, index: Index) -> tuple[int, int]:
        """Smallest and largest value of an index."""
        low = high = index.offset
        for symbol, stride in index.strides:
            start, stop = self.of[symbol]
            ends = (stride * start, stride * (stop - 1))
            low, high = low + min(ends), high + max(ends)
        return low, high

    def below(self, index: Index, bound: int) -> bool:
        """Whether an index is below a bound on the whole box; raises Cut if that holds only on a part."""
        low, high = self.span(index)
        if high < bound:
            return True
        if low >= bound:
            return False
        symbol, stride = max(index.strides, key=lambda s: abs(s[1]) * (self.of[s[0]][1] - self.of[s[0]][0]))
        start, stop = self.of[symbol]
        rest = self.span(Index(index.offset, tuple(s for s in index.strides if s[0] != symbol)))[0]
        place = -((rest - bound) // abs(stride)) if stride > 0 else (rest - bound) // abs(stride) + 1
        raise Cut(symbol, min(max(place, start + 1), stop - 1))

    def digits(self, index: Index, sizes: Sequence[int]) -> list[Index]:
        """The indices into a shape of a row-major linear index."""
        found: list[Index] = []
        for i, size in enumerate(sizes):
            unit = prod(sizes[i + 1 :])
            whole = Index(0, tuple((k, v // unit) for k, v in index.strides if v % unit == 0))
            rest = index + whole * -unit
            low, _ = self.span(rest)
            floor = low // unit
            if not self.below(rest, (floor + 1) * unit):
                raise AssertionError("a floor above the smallest value")
            digit = whole + floor
            index = rest + -floor * unit
            found.append(digit if size > 1 or digit.strides else Index(0))
        return found


# ---------------------------------------------------------------- forms
@dataclass
class _Tracer:
    """Traces indices from an output to the leaves under given symbol ranges. `fresh` is the next unused symbol."""

    ranges: Ranges
    fresh: int

    def form(self, node: Tensor, at: Sequence[Index]) -> Form:
        """The form of an element of a node; raises Cut, or UsageError for an op that cannot be traced."""
        if node.op in LEAVES:
            return ("read", node, tuple(at))
        if node.op == "full":
            return ("number", float(node.attr("value")))
        follow = _view if node.entry.index_map is not None else _FOLLOW.get(node.op)
        if follow is not None:
            return follow(self, node, dict(node.attrs), list(at))
        if node.entry.pointwise:
            return (node.op, node.attrs, *(self.form(a, self.fitted(a, at)) for a in node.args))
        raise UsageError(
            f"the reads of {node.op} cannot be followed",
            hint=f"known are {', '.join(sorted(_FOLLOW))}, views and pointwise ops",
        )

    def fitted(self, operand: Tensor, at: Sequence[Index]) -> list[Index]:
        """The index into an operand whose axes of size 1 are broadcast."""
        return [Index(0) if d == 1 else i for i, d in zip(at, operand.shape)]

    def inside(self, index: Index, size: Any) -> bool:
        """Whether an index is within an axis of this size; raises Cut."""
        return not self.ranges.below(index, 0) and self.ranges.below(index, size)

    def taps(
        self, x: Tensor, at: Sequence[Index], attrs: Mapping[str, Any], kernel: Sequence[int]
    ) -> Iterator[tuple[tuple[int, ...], list[Index] | None]]:
        """Yields (kernel position, spatial indices that it reads) for a window; None for the indices in the padding."""
        n = len(kernel)
        for tap in product(*map(range, kernel)):
            spots = [
                at[2 + i] * attrs["strides"][i] + (tap[i] * attrs["dilations"][i] - attrs["pads"][i]) for i in range(n)
            ]
            yield tap, spots if all(self.inside(s, x.shape[2 + i]) for i, s in enumerate(spots)) else None

    def summed(self, size: int, term: Callable[[Index], Form]) -> list[Form]:
        """The terms of a sum over a fresh symbol, as (number of terms, form), cut into ranges with one form each."""
        parts, found = [(0, size)], []
        symbol = self.fresh
        self.fresh += 1
        while parts:
            start, stop = parts.pop()
            self.ranges.of[symbol] = (0, stop - start)
            try:
                found.append((stop - start, term(Index(start, ((symbol, 1),) if stop - start > 1 else ()))))
            except Cut as cut:
                if cut.symbol != symbol:
                    raise
                parts += [(start, start + cut.place), (start + cut.place, stop)]
        self.fresh -= 1
        return found


def _total(terms: Sequence[Form]) -> Form:
    """The form of a sum of products: a multiset of terms without zero terms."""
    return ("sum", frozenset(Counter(t for t in terms if _ZERO not in t[1]).items()))


_ZERO = ("number", 0.0)


def _conv(t: _Tracer, node: Tensor, attrs: dict[str, Any], at: list[Index]) -> Form:
    x, w = node.args
    share, per_out = concrete(w.shape)[1], concrete(w.shape)[0] // attrs["groups"]
    low = t.ranges.span(at[1])[0] // per_out
    t.ranges.below(at[1], (low + 1) * per_out)  # raises Cut unless all output channels are in one group
    terms: list[Form] = []
    for tap, spots in t.taps(x, at, attrs, concrete(w.shape)[2:]):
        if spots is not None:
            read = lambda c: (t.form(x, [at[0], c + low * share, *spots]), t.form(w, [at[1], c, *map(Index, tap)]))  # noqa: B023
            terms += t.summed(share, read)
    return _total(terms)


def _matmul(t: _Tracer, node: Tensor, attrs: dict[str, Any], at: list[Index]) -> Form:
    a, b = node.args
    rows, columns = [*at[:-2], at[-2]], [*at[:-2], at[-1]][-(b.rank - 1) :]
    read = lambda c: (
        t.form(a, t.fitted(a, [*rows[:-1], rows[-1], c])),
        t.form(b, [*t.fitted(b, columns[:-1]), c, columns[-1]]),
    )
    return _total(t.summed(concrete(a.shape)[-1], read))


def _pool(t: _Tracer, node: Tensor, attrs: dict[str, Any], at: list[Index]) -> Form:
    x = node.args[0]
    reads = [t.form(x, [*at[:2], *s]) if s is not None else None for _, s in t.taps(x, at, attrs, attrs["kernel"])]
    if node.op == "max_pool":
        return ("max", frozenset(r for r in reads if r is not None and r != ("number", float("-inf"))))
    return ("mean", len(reads), frozenset(Counter(r for r in reads if r is not None and r != _ZERO).items()))


def _parts(t: _Tracer, node: Tensor, found: ConcatMap, at: list[Index]) -> Form:
    axis, last = found.axis, len(found.parts) - 1
    for k, (operand, start, stop) in enumerate(found.parts):
        own = [*at[:axis], at[axis] + -start, *at[axis + 1 :]]
        if found.fill is not None and t.ranges.below(at[axis], start):
            break
        if (found.fill is None and k == last) or t.ranges.below(at[axis], stop):
            return t.form(node.args[operand], own)
    return ("number", float(found.fill))


def _view(t: _Tracer, node: Tensor, attrs: dict[str, Any], at: list[Index]) -> Form:
    """An op with an index map."""
    x, shapes = node.args[0], [concrete(a.shape) for a in node.args]
    assert node.entry.index_map is not None
    found = node.entry.index_map(attrs, shapes)
    if isinstance(found, ConcatMap):
        return _parts(t, node, found, at)
    if isinstance(found, BroadcastMap):
        return t.form(x, t.fitted(x, at))
    if isinstance(found, AffineMap):
        return t.form(x, [along.at(at) for along in found.axes])
    flat, unit = Index(0), 1
    for index, size in reversed(list(zip(at, concrete(node.shape)))):
        flat, unit = flat + index * unit, unit * size
    return t.form(x, t.ranges.digits(flat, shapes[0]))


_FOLLOW: dict[str, Callable[[_Tracer, Tensor, dict[str, Any], list[Index]], Form]] = {
    "conv": _conv, "matmul": _matmul, "max_pool": _pool, "avg_pool": _pool,
}  # fmt: skip


# ---------------------------------------------------------------- regions
def whole(node: Tensor) -> Box:
    """The box of all positions of a node's value."""
    return tuple((0, d) for d in concrete(node.shape))


def volume(box: Box) -> int:
    """The number of positions in a box."""
    return prod(stop - start for start, stop in box)


def pieces(nodes: Sequence[Tensor]) -> Iterator[tuple[Box, tuple[Form, ...]]]:
    """Yields (box, form of each value on the box) for boxes that cover values of one shape.

    Raises UsageError for an op that cannot be traced.
    """
    stack = [whole(nodes[0])]
    while stack:
        box = stack.pop()
        rank = len(box)
        at = [Index(lo, ((i, 1),)) if hi - lo > 1 else Index(lo) for i, (lo, hi) in enumerate(box)]
        ranges = {i: (0, hi - lo) for i, (lo, hi) in enumerate(box)}
        try:
            yield box, tuple(_Tracer(Ranges(dict(ranges)), rank).form(node, at) for node in nodes)
        except Cut as cut:
            lo, hi = box[cut.symbol]
            stack += [
                (*box[: cut.symbol], part, *box[cut.symbol + 1 :])
                for part in ((lo + cut.place, hi), (lo, lo + cut.place))
            ]


def wrong_region(original: Tensor, mutant: Tensor) -> list[Box]:
    """Disjoint boxes outside of which two programs over the same leaves agree for every input.

    Raises UsageError if the types differ or an op cannot be traced.
    """
    if original.type != mutant.type:
        raise UsageError(f"the mutant is {mutant.type}, the original {original.type}")
    if not volume(whole(original)):
        return []
    return joined([box for box, (a, b) in pieces([original, mutant]) if a != b])


def joined(boxes: Sequence[Box]) -> list[Box]:
    """The same positions in fewer boxes: adjacent boxes that differ along one axis only are merged."""
    found, before = sorted(boxes), 0
    while len(found) != before:
        before = len(found)
        for axis in range(len(found[0]) if found else 0):
            lines: dict[Any, list[tuple[int, int]]] = {}
            for part, rest in sorted((b[axis], (b[:axis], b[axis + 1 :])) for b in found):
                line = lines.setdefault(rest, [])
                if line and line[-1][1] == part[0]:
                    line[-1] = (line[-1][0], part[1])
                else:
                    line.append(part)
            found = sorted((*head, part, *tail) for (head, tail), parts in lines.items() for part in parts)
    return found


# ---------------------------------------------------------------- correction
def restricted(node: Tensor, box: Box) -> Tensor:
    """A program that computes the elements of a node in a box and reads only the needed part of the leaves."""
    if box == whole(node):
        return node
    if node.op in _RESTRICT:
        return _RESTRICT[node.op](node, dict(node.attrs), box)
    if node.entry.pointwise and not node.is_leaf:
        parts = [restricted(a, tuple((0, 1) if d == 1 else b for d, b in zip(a.shape, box))) for a in node.args]
        return make(node.op, parts, dict(node.attrs))
    return _cut(node, box)


def _cut(node: Tensor, box: Box) -> Tensor:
    for axis, (start, stop) in enumerate(box):
        if (start, stop) != (0, node.shape[axis]):
            node = api.slice_axis(node, axis, start, stop)
    return node


def _at(box: Box, axis: int, part: tuple[int, int]) -> Box:
    return (*box[:axis], part, *box[axis + 1 :])


def _window_box(
    node: Tensor, attrs: dict[str, Any], box: Box, kernel: Sequence[int]
) -> tuple[list[tuple[int, int]], tuple[int, ...]]:
    """The spatial ranges that the windows of a box read, and the remaining padding (low and high ends per axis)."""
    reads, low, high = [], [], []
    for i, k in enumerate(kernel):
        (start, stop), size = box[2 + i], concrete(node.args[0].shape)[2 + i]
        first = start * attrs["strides"][i] - attrs["pads"][i]
        last = (stop - 1) * attrs["strides"][i] - attrs["pads"][i] + attrs["dilations"][i] * (k - 1)
        reads.append((min(max(first, 0), size - 1), max(min(last + 1, size), 1)))
        low.append(reads[-1][0] - first)
        high.append(last + 1 - reads[-1][1])
    return reads, (*low, *high)


def _restrict_conv(node: Tensor, attrs: dict[str, Any], box: Box) -> Tensor:
    x, w = node.args
    reads, pads = _window_box(node, attrs, box, concrete(w.shape)[2:])
    if any(a >= b for a, b in reads) or any(p < 0 for p in pads) or (attrs["groups"] > 1 and box[1] != (0, w.shape[0])):
        return _cut(node, box)
    part = restricted(x, (box[0], (0, concrete(x.shape)[1]), *reads))
    return make("conv", [part, restricted(w, (box[1], *whole(w)[1:]))], {**attrs, "pads": pads})


def _restrict_pool(node: Tensor, attrs: dict[str, Any], box: Box) -> Tensor:
    reads, pads = _window_box(node, attrs, box, attrs["kernel"])
    if any(a >= b for a, b in reads) or any(p < 0 for p in pads):
        return _cut(node, box)
    return make(node.op, [restricted(node.args[0], (*box[:2], *reads))], {**attrs, "pads": pads})


def _restrict_concat(node: Tensor, attrs: dict[str, Any], box: Box) -> Tensor:
    axis, (a, b) = attrs["axis"], node.args
    (start, stop), seam = box[axis], concrete(a.shape)[axis]
    if stop <= seam:
        return restricted(a, box)
    if start >= seam:
        return restricted(b, _at(box, axis, (start - seam, stop - seam)))
    parts = (restricted(a, _at(box, axis, (start, seam))), restricted(b, _at(box, axis, (0, stop - seam))))
    return make("concat", parts, attrs)


def _restrict_pad(node: Tensor, attrs: dict[str, Any], box: Box) -> Tensor:
    axis, size = attrs["axis"], concrete(node.args[0].shape)[attrs["axis"]]
    start, stop = (min(max(b - attrs["lo"], 0), size) for b in box[axis])
    if start >= stop:
        return api.full(tuple(hi - lo for lo, hi in box), attrs["value"], node.dtype)
    lo, hi = max(0, attrs["lo"] - box[axis][0]), max(0, box[axis][1] - attrs["lo"] - size)
    return make("pad", [restricted(node.args[0], _at(box, axis, (start, stop)))], {**attrs, "lo": lo, "hi": hi})


def _restrict_slice(node: Tensor, attrs: dict[str, Any], box: Box) -> Tensor:
    axis, step = attrs["axis"], attrs["step"]
    start, stop = (attrs["start"] + b * step for b in box[axis])
    part = restricted(node.args[0], _at(box, axis, (start, stop - step + 1)))
    return part if step == 1 else make("slice", [part], {**attrs, "start": 0, "stop": part.shape[axis]})


def _restrict_permute(node: Tensor, attrs: dict[str, Any], box: Box) -> Tensor:
    back = dict(zip(attrs["perm"], box))
    return make("permute", [restricted(node.args[0], tuple(back[i] for i in range(len(box))))], attrs)


_RESTRICT: dict[str, Callable[[Tensor, dict[str, Any], Box], Tensor]] = {
    "conv": _restrict_conv, "max_pool": _restrict_pool, "avg_pool": _restrict_pool, "concat": _restrict_concat,
    "pad": _restrict_pad, "slice": _restrict_slice, "permute": _restrict_permute,
}  # fmt: skip


def corrected(original: Tensor, mutant: Tensor) -> Tensor:
    """A program equal to the original: the mutant with the wrong region recomputed and spliced in."""
    return _spliced(original, mutant, whole(original), wrong_region(original, mutant))


def _meet(a: Box, b: Box) -> Box | None:
    found = tuple((max(p[0], q[0]), min(p[1], q[1])) for p, q in zip(a, b))
    return None if any(lo >= hi for lo, hi in found) else found


def _picked(node: Tensor, box: Box) -> Tensor:
    """A slice of a value that is computed anyway; of a concat, only the operands that the box intersects."""
    if node.op == "concat" and box != whole(node):
        axis, seam = node.attr("axis"), concrete(node.args[0].shape)[node.attr("axis")]
        (start, stop) = box[axis]
        if stop <= seam or start >= seam:
            behind = start >= seam
            return _picked(node.args[behind], _at(box, axis, (start - seam * behind, stop - seam * behind)))
    return _cut(node, box)


def _spliced(original: Tensor, mutant: Tensor, box: Box, wrong: Sequence[Box]) -> Tensor:
    here = joined([m for m in (_meet(box, w) for w in wrong) if m is not None])
    if not here:
        return _picked(mutant, box)
    if here == [box]:
        return restricted(original, box)
    cuts = [
        (axis, place)
        for b in here
        for axis, part in enumerate(b)
        for place in part
        if box[axis][0] < place < box[axis][1]
    ]
    axis, place = Counter(cuts).most_common(1)[0][0]
    (start, stop) = box[axis]
    parts = [_spliced(original, mutant, _at(box, axis, p), here) for p in ((start, place), (place, stop))]
    return make("concat", parts, {"axis": axis})
