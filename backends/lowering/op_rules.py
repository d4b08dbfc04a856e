"""Lowers tensor ops to the kernel IR: gives the element of a tensor at an index as an expression.

Elementwise ops need no rule, views and layout ops are lowered by their index maps (egraph/ops/index_maps.py); each
other op has a rule here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import product

from ...egraph.ir.tensor import Tensor, make
from ...egraph.ops.index_maps import BroadcastMap, ConcatMap, IndexMap, ReshapeMap
from ...egraph.types import dtypes
from ...egraph.types.dims import concrete
from ..ir.expr import Builder, Expr, operands_first
from ..ir.index import WINDOW, Axis, Index, index, linear, unravelled
from ..ir.integer_range import IntegerRanges
from ..ir.kernel import Buffer
from ..ir.simplify import conjuncts
from ..ir.unfusable import Unfusable
from .decisions import DECISIONS, decided_by_another_width, is_rounded_arithmetic
from .gather_rules import gather, gather_elements, scatter_elements
from .running_sums import running_sum


class TermLowering:
    """Lowering of elements of tensors to expressions of `builder`.

    `of`: a leaf, or another tensor in memory -> name of its buffer; `buffers`: buffer name -> layout.
    """

    def __init__(self, builder: Builder, of: Mapping[Tensor, str], buffers: Mapping[str, Buffer]) -> None:
        self.b, self.of, self.buffers = builder, of, buffers
        # (index, guards) -> expression of each tensor's element there
        self.memo: dict[tuple[tuple[Index, ...], tuple[Expr, ...]], dict[Tensor, Expr]] = {}
        self.moved: dict[Tensor, Index] = {}  # offset by which slices start later
        self.maps: dict[Tensor, IndexMap] = {}
        self.ranges = IntegerRanges(builder)
        self.unroll_limit = 0  # number of elements up to which a reduction is unrolled; 0: never
        self.written: frozenset[Tensor] = frozenset()  # scatters whose rows the kernel itself writes

    @cached_property
    def computed_in(self) -> str:
        """The dtype in which the kernel computes floats."""
        return "float64" if any(b.dtype == "float64" for b in self.buffers.values()) else "float32"

    def value(self, t: Tensor, at: tuple[Index, ...], guards: tuple[Expr, ...] = ()) -> Expr:
        """Expression of the element of the tensor `t` at the index `at` (one per axis); memory is read only where all
        `guards` hold.

        Raises Unfusable for ops without an index expression.
        """
        known = self.memo.setdefault((at, guards), {})
        if t not in known:
            for x in self._ahead(t, known):
                known[x] = self._value(x, at, guards)
        return known[t]

    def _ahead(self, t: Tensor, known: Mapping[Tensor, Expr]) -> list[Tensor]:
        """The operands of the same shape in a chain of elementwise ops, in evaluation order, ending with `t`.

        Operands with a `known` expression are left out. Lowering in this order avoids deep recursion.
        """

        def reads(x: Tensor) -> list[Tensor]:
            alone = not x.entry.pointwise or x in self.of or _rule(x) is not None
            return [] if alone else [a for a in x.args if a.shape == x.shape]

        return operands_first(t, known.__contains__, reads)

    def _value(self, t: Tensor, at: tuple[Index, ...], guards: tuple[Expr, ...]) -> Expr:
        if _reads_as_negative(t):
            raise Unfusable("uint64 values that int64 cannot represent")
        if t.op in DECISIONS and decided_by_another_width(t, self.of, self.computed_in):
            raise Unfusable("a decision by a float that the kernel computes in another width")
        if t in self.of:
            name = self.of[t]
            buffer = self.buffers[name]
            place = Index()
            for i, stride, size in zip(at, buffer.strides, buffer.shape, strict=True):
                place = place + i * stride if size > 1 else place
            return self.b.load(name, place, buffer.dtype, (), guards)
        rule = _rule(t)
        if rule is not None:
            return self.ranges.wrapped(rule(self, t, at, guards), t.dtype)
        if not t.entry.pointwise:
            raise Unfusable(f"{t.op} has no index expression")
        return self.combined(t.op, [self.operand(a, at, guards) for a in t.args], t.dtype)

    def combined(self, op: str, args: Sequence[Expr], dtype: str) -> Expr:
        """Expression of the elementwise op `op` on the elements `args`, as a value of `dtype`: integers wrap at its
        width."""
        return self.ranges.wrapped(self.b.pointwise(op, args), dtype)

    def index_map(self, t: Tensor) -> IndexMap:
        """The index map of `t`, the result of a view or layout op: which operand element each of its elements reads."""
        if t not in self.maps:
            assert t.entry.index_map is not None
            self.maps[t] = t.entry.index_map(dict(t.attrs), [concrete(a.shape) for a in t.args])
        return self.maps[t]

    def operand(self, x: Tensor, at: tuple[Index, ...], guards: tuple[Expr, ...]) -> Expr:
        """Expression of the element of `x`, an operand that may broadcast, that an elementwise op reads for its result
        at the index `at`.

        Of the conditions `guards` under which it is read, those on an axis along which the operand broadcasts are
        dropped.
        """
        own = tuple([Index() if d == 1 else i for i, d in zip(at, concrete(x.shape), strict=True)])
        if own == at or not guards:
            return self.value(x, own, guards)
        atoms = {a for i in own for a in i.atoms}
        lost = {i for i, k in zip(at, own) if i != k and atoms.isdisjoint(a for a, _ in i.terms)}
        kept = (g for g in guards if not any(a.op == "index" and a.value in lost for a in g.args))
        return self.value(x, own, tuple(kept) if lost else guards)

    def fresh(self, size: int, at: Iterable[Index], guards: Iterable[Expr], stem: str = "r") -> Axis:
        """A reduction axis of `size`: the first that neither the index `at` nor the `guards` around the reduction use,
        so that reductions of equal size share an axis. `stem`: what its name begins with."""
        used = frozenset().union(*(i.axes for i in at), *(g.axes for g in guards))
        k = 0
        while (axis := Axis(f"{stem}{size}" + (f"n{k}" if k else ""), size)) in used:  # a loop over r5 counts in r5_
            k += 1
        return axis

    def within(self, x: Tensor, at: tuple[Index, ...], axis: int, guards: tuple[Expr, ...], fill: float = 0.0) -> Expr:
        """Expression of the element of `x` at the index `at`, which may be out of bounds along the axis number `axis`;
        there the value is `fill`, and nothing is read. `guards`: further conditions for reading."""
        b = self.b
        inside = b.pointwise("and", (b.less(index(-1), at[axis]), b.less(at[axis], index(int(x.shape[axis])))))  # type: ignore[arg-type]
        more = () if inside.op == "const" else tuple(g for g in conjuncts(inside) if g not in guards)
        value = self.value(x, at, (*guards, *more))
        return b.pointwise("where", (inside, value, b.const(fill, value.kind)))


_ORDERED = {
    "lt",
    "le",
    "floordiv",
    "mod",
    "maximum",
    "minimum",
    "max",
    "min",
    "abs",
    "sign",
    "pow",
    "argmax",
    "argmin",
    "argsort",
}


def _reads_as_negative(t: Tensor) -> bool:
    """Whether an op would treat large uint64 operands as negative, because kernels compute integers in int64.

    Sums, products and bit operations give the same bits in both.
    """
    if not any(a.dtype == "uint64" for a in t.args):
        return False
    return t.op in _ORDERED or (t.op == "cast" and dtypes.is_float(t.dtype))


Rule = Callable[[TermLowering, Tensor, tuple[Index, ...], tuple[Expr, ...]], Expr]


def _full(r: TermLowering, t: Tensor, at: tuple[Index, ...], guards: tuple[Expr, ...]) -> Expr:
    return r.b.const(t.attr("value"), dtypes.category(t.dtype))


def _iota(r: TermLowering, t: Tensor, at: tuple[Index, ...], guards: tuple[Expr, ...]) -> Expr:
    found = r.b.index(at[t.attr("axis")])
    return found if dtypes.category(t.dtype) == "int" else r.b.make("cast", (found,), "float32", "float")


def _cast(r: TermLowering, t: Tensor, at: tuple[Index, ...], guards: tuple[Expr, ...]) -> Expr:
    x = r.value(t.args[0], at, guards)
    kind = dtypes.category(t.dtype)
    if t.dtype == "float64" and t.args[0].dtype == "float32" and is_rounded_arithmetic(t.args[0], r.of):
        raise Unfusable("a float32 result that is used in float64 in the same kernel, which would not round it")
    if kind == x.kind == "float" or t.dtype == t.args[0].dtype:
        return x  # dtypes of floats belong to buffers
    if t.dtype == "float64" and x.kind == "int" and r.computed_in != "float64":
        raise Unfusable(
            "integers converted to float64 in a kernel that computes in float32"
        )  # float64 that no buffer has is computed in float32
    if t.dtype == "int64" and x.op == "index":
        return x  # computed in 64 bits where it has to be
    if x.op == "const" and x.kind != "float":
        return r.ranges.constant(int(x.value), t.dtype)
    return r.b.make("cast", (x,), "int32" if t.dtype == "int64" and x.kind == "bool" else t.dtype, kind)


def _from_float8(r: TermLowering, t: Tensor, at: tuple[Index, ...], guards: tuple[Expr, ...]) -> Expr:
    return r.b.make("from_float8", (r.value(t.args[0], at, guards),))


def _reduce(r: TermLowering, t: Tensor, at: tuple[Index, ...], guards: tuple[Expr, ...]) -> Expr:
    axes = [a for a in t.attr("axes") if t.args[0].shape[a] != 1]
    sizes = tuple(int(t.args[0].shape[a]) for a in axes)
    if not axes:
        return r.value(t.args[0], at, guards)
    if 0 in sizes:
        raise Unfusable("a reduction over an empty axis")
    if math.prod(sizes) <= r.unroll_limit:
        return _unrolled(r, t, at, axes, guards)
    windows, x = 0, t.args[0]
    while x.op == "windows":
        windows, x = windows + 1, x.args[0]
    here = frozenset().union(*(i.axes for i in at))
    guards = tuple(
        g for g in guards if not g.axes or not g.axes.isdisjoint(here)
    )  # a row's mean is the same for both halves
    axis = r.fresh(math.prod(sizes), at, guards, WINDOW if axes[0] >= t.args[0].rank - windows else "r")
    inner = list(at)
    for a, i in zip(axes, unravelled(index(axis), sizes)):
        inner[a] = i
    body = r.ranges.as_dtype(r.value(t.args[0], tuple(inner), guards), t.args[0].dtype, t.dtype)
    return r.b.reduce(REDUCTION[t.entry.monoid], axis, body)


#: Binary op that a reduction folds -> reduction of the kernel IR.
REDUCTION = {"add": "sum", "mul": "prod", "maximum": "max", "minimum": "min"}


def _unrolled(r: TermLowering, t: Tensor, at: tuple[Index, ...], axes: list[int], guards: tuple[Expr, ...]) -> Expr:
    """Expression of a reduction along `axes`, unrolled."""
    found: Expr | None = None
    for place in product(*(range(concrete(t.args[0].shape)[a]) for a in axes)):
        inner = list(at)
        for a, k in zip(axes, place):
            inner[a] = index(k)
        x = r.ranges.as_dtype(r.value(t.args[0], tuple(inner), guards), t.args[0].dtype, t.dtype)
        found = x if found is None else r.combined(t.entry.monoid, (found, x), t.dtype)
    assert found is not None
    return found


def _matmul(r: TermLowering, t: Tensor, at: tuple[Index, ...], guards: tuple[Expr, ...]) -> Expr:
    x, y = t.args
    axis = r.fresh(int(x.shape[-1]), at, guards)  # type: ignore[arg-type]
    if axis.size == 0:
        raise Unfusable("a contraction over an empty axis")
    k = index(axis)
    left = (*at[:-1], k)
    right = (k, at[-1]) if y.rank == 2 else (*at[:-2], k, at[-1])
    a, b = r.operand(x, left, guards), r.operand(y, right, guards)
    return r.b.reduce("sum", axis, r.combined("mul", (a, b), t.dtype))


def _view(r: TermLowering, t: Tensor, at: tuple[Index, ...], guards: tuple[Expr, ...]) -> Expr:
    """Expression of an op that has an index map."""
    found, x = r.index_map(t), t.args[0]
    if isinstance(found, BroadcastMap):
        return r.operand(x, at, guards)
    if isinstance(found, ReshapeMap):
        return r.value(x, unravelled(linear(at, concrete(t.shape)), concrete(x.shape)), guards)
    if isinstance(found, ConcatMap):
        return _parts(r, t, found, at, guards)
    inner = [along.at(at) for along in found.axes]
    if t in r.moved:
        inner[t.attr("axis")] += r.moved[t]
    return r.value(x, tuple(inner), guards)


def _parts(r: TermLowering, t: Tensor, found: ConcatMap, at: tuple[Index, ...], guards: tuple[Expr, ...]) -> Expr:
    """Expression of a padded operand, or of concatenated operands."""
    a, ((operand, start, stop), *rest) = found.axis, found.parts
    own = (*at[:a], at[a] - int(start), *at[a + 1 :])
    if found.fill is not None:
        assert not rest, "operands one after the other have no padding"
        return r.within(t.args[operand], own, a, guards, found.fill)
    if not rest:
        return r.value(t.args[operand], own, guards)
    others = ConcatMap(a, tuple(rest))
    first = r.b.less(at[a], index(int(stop)))
    if first.op == "const":
        return r.value(t.args[operand], own, guards) if first.value else _parts(r, t, others, at, guards)
    second = r.b.make("not", (first,), None, "bool")
    left = r.value(t.args[operand], own, (*guards, first))
    right = _parts(r, t, others, at, (*guards, second))
    return r.b.pointwise("where", (first, left, right))


def _conv(r: TermLowering, t: Tensor, at: tuple[Index, ...], guards: tuple[Expr, ...]) -> Expr:
    """Expression of a convolution: a sum over kernel positions and channels, channels innermost, so that tiles that
    divide the channels have one kernel position each. A depthwise convolution is a sum over a window."""
    x, w = t.args
    sizes, n = concrete(w.shape), x.rank - 2
    pads, per_out = t.attr("pads"), sizes[0] // t.attr("groups")
    taps, inner = sizes[2:], sizes[1]
    axis = r.fresh(math.prod(taps) * inner, at, guards, "r" if inner > 1 else WINDOW)
    if axis.size == 0:
        raise Unfusable("a contraction over an empty axis")
    *tap, c = unravelled(index(axis), (*taps, inner))
    padded = x
    for i, (lo, hi) in enumerate(zip(pads[:n], pads[n:]), 2):
        padded = make("pad", (padded,), {"axis": i, "lo": lo, "hi": hi, "value": 0.0}) if lo or hi else padded
    place = (i * s + k * d for i, s, k, d in zip(at[2:], t.attr("strides"), tap, t.attr("dilations")))
    channel = (at[1] // per_out if per_out < sizes[0] else Index()) * inner + c
    image, weight = r.value(padded, (at[0], channel, *place), guards), r.value(w, (at[1], c, *tap), guards)
    return r.b.reduce("sum", axis, r.combined("mul", (image, weight), t.dtype))


_RULES: dict[str, Rule] = {
    "full": _full, "iota": _iota, "cast": _cast, "from_float8": _from_float8,
    "matmul": _matmul, "conv": _conv, "gather": gather, "gather_elements": gather_elements,
    "scatter_elements": scatter_elements, "cumsum": running_sum,
}  # fmt: skip


def _rule(t: Tensor) -> Rule | None:
    """The lowering rule of a node; None if it is elementwise or cannot be lowered."""
    if t.entry.monoid in REDUCTION:
        return _reduce
    return _view if t.entry.index_map is not None else _RULES.get(t.op)
