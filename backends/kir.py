"""The kernel IR: what one generated kernel computes, as scalar expressions over named axes.

An expression says the value of one element at symbolic indices: loads at affine positions, pointwise operations, and
reductions that bind an axis. It knows no tiles, loops or threads: those are the schedule's, which an emitter applies. Index
arithmetic replaces all views (reshape, permute, slice, broadcast, concat, pad), so a view inside a kernel costs nothing.

Expressions are hash-consed within one `Builder`; a reduction over an axis of one size reuses the axis of another one where
it can, so that loads shared between softmax's maximum and its sum are one node. Sums are kept with everything that does not
depend on their axis moved outside (the DEFER rule): the row scale of a normalisation leaves the product behind it, and so does
the denominator of a softmax.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import pairwise
from typing import Any

from ..egraph import dtypes
from ..egraph.dims import concrete
from ..egraph.graph import Tensor, make, topological
from ..egraph.interpret import expand_all
from .index import Axis, Division, Index, index, linear, unravelled

Strides = tuple[int, ...]
LANES = 8  # elements of the longest vector in memory
WINDOW = "w"  # names of axes that run over the elements of a window begin so: other axes move the window


class Unfusable(Exception):
    """The term has something that a generated kernel cannot hold; the message says what."""


class Expr:
    """One scalar value. `value` is what the op needs beside operands:

    const: a number; index: an Index; load: (operand, Index, coefficients of the index operands, dtype);
    reduce: (monoid, Axis); cast: a dtype. A load's operands are data-dependent index parts, then guards: where a guard is
    false nothing is read and the value is 0. `kind` is float, int or bool; `axes` are the free axes.
    """

    __slots__ = ("args", "axes", "kind", "number", "op", "value")

    def __init__(
        self, op: str, args: tuple[Expr, ...], value: Any, kind: str, axes: frozenset[Axis], number: int
    ) -> None:
        self.op, self.args, self.value, self.kind, self.axes, self.number = op, args, value, kind, axes, number

    @property
    def axis(self) -> Axis:
        """The axis that a reduction binds."""
        found: Axis = self.value[1]
        return found

    def __repr__(self) -> str:
        return f"<{self.op} {self.value}>" if self.value is not None else f"<{self.op}>"


def walk(roots: Iterable[Expr]) -> list[Expr]:
    """All expressions below the roots, operands first."""
    order: list[Expr] = []
    seen: set[Expr] = set()
    stack = [(r, False) for r in roots]
    while stack:
        e, ready = stack.pop()
        if ready:
            order.append(e)
        elif e not in seen:
            seen.add(e)
            stack.append((e, True))
            stack += [(a, False) for a in reversed(e.args) if a not in seen]
    return order


COMPARES = ("eq", "lt", "le", "not", "is_nan", "is_inf", "and", "or", "xor")
NEUTRAL = {"sum": 0.0, "max": -math.inf, "min": math.inf, "prod": 1.0}


class Builder:
    """Makes expressions, each once."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], Expr] = {}
        self.ways: set[str] = set()  # transformations that changed something on the way

    def make(self, op: str, args: Sequence[Expr] = (), value: Any = None, kind: str = "float") -> Expr:
        """An expression as given, without simplification."""
        key = (op, tuple(a.number for a in args), value, kind)
        found = self._known.get(key)
        if found is None:
            free: frozenset[Axis] = frozenset().union(*(a.axes for a in args))
            if op == "index":
                free = value.axes
            elif op == "load":
                free |= value[1].axes
            elif op == "reduce":
                free -= {value[1]}
            found = self._known[key] = Expr(op, tuple(args), value, kind, free, len(self._known))
        return found

    # ------------------------------------------------------------ simplifying makers
    def const(self, value: float, kind: str = "float") -> Expr:
        """A number."""
        return self.make("const", (), {"float": float, "int": int, "bool": bool}[kind](value), kind)

    def index(self, value: Index) -> Expr:
        """The value of an index."""
        return self.make("index", (), value, "int") if value.terms else self.const(value.const, "int")

    def load(
        self, operand: str, at: Index, dtype: str, parts: Sequence[tuple[Expr, int]], guards: Sequence[Expr]
    ) -> Expr:
        """The element of an operand at an index, which may have data-dependent parts with their strides."""
        kind = dtypes.category(dtype)
        steps = tuple(c for _, c in parts)
        return self.make("load", (*(e for e, _ in parts), *guards), (operand, at, steps, dtype), kind)

    def less(self, a: Index, b: Index) -> Expr:
        """a < b, decided where the ranges decide it."""
        low, high = (a - b).range
        if high < 0 or low >= 0:
            return self.const(high < 0, "bool")
        return self.make("lt", (self.index(a), self.index(b)), None, "bool")

    def pointwise(self, op: str, args: Sequence[Expr]) -> Expr:
        """A pointwise operation; numbers are folded and neutral elements dropped."""
        kind = "bool" if op in COMPARES and op not in ("and", "or", "xor") else args[-1].kind
        simple = _SIMPLE.get(op)
        found = simple(self, *args) if simple else None
        return found if found is not None else self.make(op, args, None, kind)

    def mul(self, a: Expr, b: Expr) -> Expr:
        """a * b."""
        return self.pointwise("mul", (a, b))

    def reduce(self, monoid: str, axis: Axis, body: Expr) -> Expr:
        """The reduction of a body along an axis. Factors that do not depend on the axis leave a sum, and so do
        monotone scales; over an axis that the body does not depend on nothing is left to do."""
        if axis not in body.axes:
            return (
                self.mul(body, self.const(axis.size))
                if monoid == "sum"
                else body
                if monoid in ("max", "min")
                else self._raw(monoid, axis, body)
            )
        if monoid != "sum" or body.kind != "float":
            return self._raw(monoid, axis, body)
        over, under = factors(body)
        inside = [f for f in over if axis in f.axes], [f for f in under if axis in f.axes]
        found = self._raw("sum", axis, self.product(*inside))
        rest = [f for f in over if axis not in f.axes], [f for f in under if axis not in f.axes]
        if any(f.op != "const" for f in (*rest[0], *rest[1])):
            self.ways.add("DEFER")
        return self.product([found, *rest[0]], rest[1])

    def _raw(self, monoid: str, axis: Axis, body: Expr) -> Expr:
        return self.make("reduce", (body,), (monoid, axis), body.kind)

    def product(self, over: Sequence[Expr], under: Sequence[Expr]) -> Expr:
        """prod(over) / prod(under)."""
        roots = [f for f in under if f.op == "sqrt"]
        over = [*over, *(self.pointwise("rsqrt", f.args) for f in roots)]
        under = [f for f in under if f not in roots]
        found: Expr | None = None
        for f in over:
            found = f if found is None else self.mul(found, f)
        if found is None:
            found = self.const(1.0)
        if under:
            below = under[0]
            for f in under[1:]:
                below = self.mul(below, f)
            found = self.pointwise("div", (found, below))
        return found

    def rebuilt(self, roots: Sequence[Expr], change: Callable[[Expr, tuple[Expr, ...]], Expr | None]) -> list[Expr]:
        """The roots with `change` applied to each expression over changed operands (None: as it was)."""
        done: dict[Expr, Expr] = {}
        for e in walk(roots):
            args = tuple(done[a] for a in e.args)
            new = change(e, args)
            done[e] = new if new is not None else e if args == e.args else self.make(e.op, args, e.value, e.kind)
        return [done[r] for r in roots]

    def substituted(self, roots: Sequence[Expr], change: Mapping[Axis, Index]) -> list[Expr]:
        """The roots with indices in place of free axes."""

        def one(e: Expr, args: tuple[Expr, ...]) -> Expr | None:
            if e.op == "index":
                return self.index(e.value.replaced(change))
            if e.op == "load":
                operand, at, steps, dtype = e.value
                return self.make("load", args, (operand, at.replaced(change), steps, dtype), e.kind)
            return None

        return self.rebuilt(roots, one)


def below_maximum(e: Expr) -> tuple[Expr, Expr] | None:
    """(a, m) of an exponential exp(a - m) where m is the maximum of a: 0 wherever m is -inf, in every emitter. A part of a
    row that a mask hides altogether then adds nothing."""
    if e.op not in ("exp", "exp2") or e.args[0].op != "sub":
        return None
    a, m = e.args[0].args
    return (a, m) if m.op == "reduce" and m.value[0] == "max" and m.args[0] is a else None


def factors(e: Expr) -> tuple[list[Expr], list[Expr]]:
    """The factors of a product over and under its fraction bar."""
    if e.op == "mul":
        (a, b), (c, d) = factors(e.args[0]), factors(e.args[1])
        return a + c, b + d
    if e.op == "div":
        (a, b), (c, d) = factors(e.args[0]), factors(e.args[1])
        return a + d, b + c
    return [e], []


# ---------------------------------------------------------------- simplification
def _number(e: Expr) -> Any:
    return e.value if e.op == "const" else None


def _simple_add(b: Builder, x: Expr, y: Expr) -> Expr | None:
    if x.op in ("index", "const") and y.op in ("index", "const") and x.kind == y.kind == "int":
        return b.index(_as_index(x) + _as_index(y))
    if _number(x) is not None and _number(y) is not None:
        return b.const(x.value + y.value, x.kind)
    return y if _number(x) == 0 else x if _number(y) == 0 else None


def _simple_sub(b: Builder, x: Expr, y: Expr) -> Expr | None:
    if x.op in ("index", "const") and y.op in ("index", "const") and x.kind == y.kind == "int":
        return b.index(_as_index(x) - _as_index(y))
    return x if _number(y) == 0 else None


def _simple_mul(b: Builder, x: Expr, y: Expr) -> Expr | None:
    if _number(x) is not None and _number(y) is not None:
        return b.const(x.value * y.value, x.kind)
    return y if _number(x) == 1 else x if _number(y) == 1 else None


def _simple_div(b: Builder, x: Expr, y: Expr) -> Expr | None:
    n = _number(y)
    if x.kind == "float" and y.op == "sqrt":
        return b.mul(x, b.pointwise("rsqrt", y.args))
    if x.kind != "float" or n is None:
        return None
    return x if n == 1 else b.mul(x, b.const(1.0 / n)) if n else None


def _simple_compare(test: Callable[[Any, Any], bool]) -> Callable[[Builder, Expr, Expr], Expr | None]:
    def simple(b: Builder, x: Expr, y: Expr) -> Expr | None:
        if x.op in ("index", "const") and y.op in ("index", "const") and x.kind == y.kind == "int":
            low, high = (_as_index(x) - _as_index(y)).range
            if test(high, 0):
                return b.const(True, "bool")
            if not test(low, 0):
                return b.const(False, "bool")
        return None

    return simple


def _simple_where(b: Builder, c: Expr, x: Expr, y: Expr) -> Expr | None:
    if x.kind == "bool" and x.op == y.op == "const" and x.value != y.value:
        return c if x.value else b.pointwise("not", (c,))
    if y.op == "const" and not y.value and x.op == "load" and set(_conjuncts(c)) <= set(x.args[len(x.value[2]) :]):
        return x  # nothing is read there, which counts as 0
    return (x if c.value else y) if c.op == "const" else x if x is y else None


def _conjuncts(c: Expr) -> list[Expr]:
    """The conditions that must all hold."""
    return [c] if c.op != "and" else [*_conjuncts(c.args[0]), *_conjuncts(c.args[1])]


def _simple_and(b: Builder, x: Expr, y: Expr) -> Expr | None:
    if x.kind != "bool":  # bits of whole numbers
        return None
    return (y if x.value else x) if x.op == "const" else (x if y.value else y) if y.op == "const" else None


def _simple_or(b: Builder, x: Expr, y: Expr) -> Expr | None:
    if x.kind != "bool":
        return None
    return (x if x.value else y) if x.op == "const" else (y if y.value else x) if y.op == "const" else None


def _simple_not(b: Builder, x: Expr) -> Expr | None:
    return b.const(not x.value, "bool") if x.op == "const" else x.args[0] if x.op == "not" else None


def _simple_pow(b: Builder, x: Expr, y: Expr) -> Expr | None:
    n = _number(y)
    if n in (1.0, 2.0, 3.0):
        found = x
        for _ in range(int(n) - 1):
            found = b.mul(found, x)
        return found
    plain = {0.5: "sqrt", -0.5: "rsqrt", -1.0: "recip"}.get(n) if n is not None else None
    return b.pointwise(plain, (x,)) if plain else None


def _as_index(e: Expr) -> Index:
    return e.value if e.op == "index" else index(int(e.value))


_SIMPLE: dict[str, Callable[..., Expr | None]] = {
    "add": _simple_add, "sub": _simple_sub, "mul": _simple_mul, "div": _simple_div, "where": _simple_where,
    "lt": _simple_compare(operator.lt), "le": _simple_compare(operator.le),
    "and": _simple_and, "or": _simple_or, "not": _simple_not, "pow": _simple_pow,
}  # fmt: skip


# ---------------------------------------------------------------- kernels
@dataclass(frozen=True)
class Buffer:
    """An operand or result in memory: dtype, sizes and strides in elements."""

    dtype: str
    shape: tuple[int, ...]
    strides: Strides


@dataclass(frozen=True)
class Store:
    """One result: `value` at each point of the kernel's axes where all `guards` hold goes to position `at` of a buffer. What
    does not depend on an axis is the same along it. `parts` are further terms of the position, with their strides, that depend
    on data: the rest of the buffer stays as it was."""

    buffer: str
    at: Index
    value: Expr
    guards: tuple[Expr, ...] = ()
    parts: tuple[tuple[Expr, int], ...] = ()

    @property
    def exprs(self) -> tuple[Expr, ...]:
        """All expressions in it."""
        return (self.value, *self.guards, *(e for e, _ in self.parts))

    def moved(self, at: Index, exprs: Sequence[Expr]) -> Store:
        """The same with other expressions, in the order of `exprs`."""
        value, *more = exprs
        guards, picks = more[: len(self.guards)], more[len(self.guards) :]
        return replace(
            self, at=at, value=value, guards=tuple(guards), parts=tuple((e, c) for e, (_, c) in zip(picks, self.parts))
        )


@dataclass(frozen=True)
class Kernel:
    """Results over parallel axes (outermost first), from operands. `builder` made the expressions."""

    axes: tuple[Axis, ...]
    stores: tuple[Store, ...]
    buffers: Mapping[str, Buffer]
    builder: Builder = field(repr=False, compare=False)

    @cached_property
    def exprs(self) -> list[Expr]:
        """All expressions, operands first."""
        return walk(e for s in self.stores for e in s.exprs)

    @cached_property
    def reductions(self) -> list[Expr]:
        """All reductions, inner ones first."""
        return [e for e in self.exprs if e.op == "reduce"]

    def with_values(self, values: Sequence[Expr], **change: Any) -> Kernel:
        """With other values to store."""
        stores = tuple(replace(s, value=v) for s, v in zip(self.stores, values, strict=True))
        return replace(self, stores=stores, **change)

    def __str__(self) -> str:
        """A listing: one line per value that is used more than once, a reduction or a load."""
        names: dict[Expr, str] = {}
        lines = [f"for {', '.join(f'{a}<{a.size}' for a in self.axes)}:"]
        uses: dict[Expr, int] = {}
        for e in self.exprs:
            for a in e.args:
                uses[a] = uses.get(a, 0) + 1
        for e in self.exprs:
            text = _listing(e, names)
            if e.op in ("load", "reduce") or (uses.get(e, 0) > 1 and e.op not in ("const", "index")):
                names[e] = f"v{len(names)}"
                lines.append(f"  {names[e]} = {text}")
            else:
                names[e] = text
        for s in self.stores:
            guard = f" if {' and '.join(names[g] for g in s.guards)}" if s.guards else ""
            place = " + ".join([repr(s.at), *(f"{names[e]} * {c}" for e, c in s.parts)])
            lines.append(f"  {s.buffer}[{place}] = {names[s.value]}{guard}")
        return "\n".join(lines)


def _listing(e: Expr, names: Mapping[Expr, str]) -> str:
    args = [names[a] for a in e.args]
    if e.op == "load":
        operand, at, steps, _ = e.value
        parts = [f"{a} * {s}" for a, s in zip(args, steps)]
        guard = f" if {' and '.join(args[len(steps) :])}" if len(args) > len(steps) else ""
        return f"{operand}[{' + '.join([repr(at), *parts])}]{guard}"
    if e.op == "reduce":
        return f"{e.value[0]}({args[0]} for {e.value[1]}<{e.value[1].size})"
    if e.op in ("const", "index"):
        return repr(e.value)
    return f"{e.op}({', '.join(args)})"


# ---------------------------------------------------------------- from tensors
class Reader:
    """Values of tensors at indices. Leaves are operands; `of` maps leaf -> buffer name."""

    def __init__(self, builder: Builder, of: Mapping[Tensor, str], buffers: Mapping[str, Buffer]) -> None:
        self.b, self.of, self.buffers = builder, of, buffers
        self.memo: dict[tuple[Any, ...], Expr] = {}
        self.moved: dict[Tensor, Index] = {}  # by how much slices begin later

    def value(self, t: Tensor, at: tuple[Index, ...], guards: tuple[Expr, ...] = ()) -> Expr:
        """The element of a tensor at an index."""
        key = (t, at, guards)
        if key not in self.memo:
            self.memo[key] = self._value(t, at, guards)
        return self.memo[key]

    def _value(self, t: Tensor, at: tuple[Index, ...], guards: tuple[Expr, ...]) -> Expr:
        if t in self.of:
            name = self.of[t]
            buffer = self.buffers[name]
            place = Index()
            for i, stride, size in zip(at, buffer.strides, buffer.shape, strict=True):
                place = place + i * stride if size > 1 else place
            return self.b.load(name, place, buffer.dtype, (), guards)
        rule = _RULES.get(t.op)
        if rule is not None:
            return rule(self, t, at, guards)
        if not t.entry.pointwise:
            raise Unfusable(f"{t.op} has no index expression")
        return self.b.pointwise(t.op, [self._operand(a, at, guards) for a in t.args])

    def _operand(self, x: Tensor, at: tuple[Index, ...], guards: tuple[Expr, ...]) -> Expr:
        """An operand that may broadcast. What guards an index that it does not have is not its guard."""
        own = tuple(Index() if d == 1 else i for i, d in zip(at, concrete(x.shape), strict=True))
        atoms = {a for i in own for a in i.atoms}
        lost = {i for i, k in zip(at, own) if i != k and atoms.isdisjoint(a for a, _ in i.terms)}
        kept = (g for g in guards if not any(a.op == "index" and a.value in lost for a in g.args))
        return self.value(x, own, tuple(kept) if lost else guards)

    def fresh(self, size: int, at: Iterable[Index], stem: str = "r") -> Axis:
        """An axis for a reduction: the first of its size that does not occur in the surroundings."""
        used = frozenset().union(*(i.axes for i in at))
        k = 0
        while (axis := Axis(f"{stem}{size}" + "_" * k, size)) in used:
            k += 1
        return axis

    def within(self, x: Tensor, at: tuple[Index, ...], axis: int, guards: tuple[Expr, ...], fill: float = 0.0) -> Expr:
        """The element of a tensor at an index that may lie before or behind an axis' elements: `fill` there."""
        b = self.b
        inside = b.pointwise("and", (b.less(index(-1), at[axis]), b.less(at[axis], index(int(x.shape[axis])))))  # type: ignore[arg-type]
        more = () if inside.op == "const" else tuple(g for g in _conjuncts(inside) if g not in guards)
        value = self.value(x, at, (*guards, *more))
        return b.pointwise("where", (inside, value, b.const(fill, value.kind)))


Rule = Callable[[Reader, Tensor, tuple[Index, ...], tuple[Expr, ...]], Expr]


def _full(r: Reader, t: Tensor, at: tuple[Index, ...], guards: tuple[Expr, ...]) -> Expr:
    return r.b.const(t.attr("value"), dtypes.category(t.dtype))


def _iota(r: Reader, t: Tensor, at: tuple[Index, ...], guards: tuple[Expr, ...]) -> Expr:
    found = r.b.index(at[t.attr("axis")])
    return found if dtypes.category(t.dtype) == "int" else r.b.make("cast", (found,), "float32", "float")


def _cast(r: Reader, t: Tensor, at: tuple[Index, ...], guards: tuple[Expr, ...]) -> Expr:
    x = r.value(t.args[0], at, guards)
    kind = dtypes.category(t.dtype)
    if kind == x.kind == "float" or t.dtype == t.args[0].dtype:
        return x  # widths of floats are the buffers' business
    return r.b.make("cast", (x,), t.dtype, kind)


def _reduce(r: Reader, t: Tensor, at: tuple[Index, ...], guards: tuple[Expr, ...]) -> Expr:
    axes = [a for a in t.attr("axes") if t.args[0].shape[a] != 1]
    sizes = tuple(int(t.args[0].shape[a]) for a in axes)
    if not axes:
        return r.value(t.args[0], at, guards)
    if 0 in sizes:
        raise Unfusable("an empty reduction")
    windows, x = 0, t.args[0]
    while x.op == "windows":
        windows, x = windows + 1, x.args[0]
    axis = r.fresh(math.prod(sizes), at, WINDOW if axes[0] >= t.args[0].rank - windows else "r")
    inner = list(at)
    for a, i in zip(axes, unravelled(index(axis), sizes)):
        inner[a] = i
    return r.b.reduce(t.op, axis, r.value(t.args[0], tuple(inner), guards))


def _matmul(r: Reader, t: Tensor, at: tuple[Index, ...], guards: tuple[Expr, ...]) -> Expr:
    x, y = t.args
    axis = r.fresh(int(x.shape[-1]), at)  # type: ignore[arg-type]
    if axis.size == 0:
        raise Unfusable("an empty contraction")
    k = index(axis)
    left = (*at[:-1], k)
    right = (k, at[-1]) if y.rank == 2 else (*at[:-2], k, at[-1])
    a, b = r._operand(x, left, guards), r._operand(y, right, guards)
    return r.b.reduce("sum", axis, r.b.mul(a, b))


def _reshape(r: Reader, t: Tensor, at: tuple[Index, ...], guards: tuple[Expr, ...]) -> Expr:
    x = t.args[0]
    return r.value(x, unravelled(linear(at, concrete(t.shape)), concrete(x.shape)), guards)


def _permute(r: Reader, t: Tensor, at: tuple[Index, ...], guards: tuple[Expr, ...]) -> Expr:
    inner = [Index()] * len(at)
    for i, p in zip(at, t.attr("perm")):
        inner[p] = i
    return r.value(t.args[0], tuple(inner), guards)


def _slice(r: Reader, t: Tensor, at: tuple[Index, ...], guards: tuple[Expr, ...]) -> Expr:
    a = t.attr("axis")
    moved = at[a] * t.attr("step") + t.attr("start") + r.moved.get(t, Index())
    return r.value(t.args[0], (*at[:a], moved, *at[a + 1 :]), guards)


def _flip(r: Reader, t: Tensor, at: tuple[Index, ...], guards: tuple[Expr, ...]) -> Expr:
    a = t.attr("axis")
    return r.value(t.args[0], (*at[:a], index(int(t.shape[a]) - 1) - at[a], *at[a + 1 :]), guards)


def _concat(r: Reader, t: Tensor, at: tuple[Index, ...], guards: tuple[Expr, ...]) -> Expr:
    a, (x, y) = t.attr("axis"), t.args
    size = int(x.shape[a])
    first = r.b.less(at[a], index(size))
    if first.op == "const":
        chosen, i = (x, at[a]) if first.value else (y, at[a] - size)
        return r.value(chosen, (*at[:a], i, *at[a + 1 :]), guards)
    second = r.b.make("not", (first,), None, "bool")
    left = r.value(x, at, (*guards, first))
    right = r.value(y, (*at[:a], at[a] - size, *at[a + 1 :]), (*guards, second))
    return r.b.pointwise("where", (first, left, right))


def _pad(r: Reader, t: Tensor, at: tuple[Index, ...], guards: tuple[Expr, ...]) -> Expr:
    a = t.attr("axis")
    return r.within(t.args[0], (*at[:a], at[a] - t.attr("lo"), *at[a + 1 :]), a, guards, t.attr("value"))


def _windows(r: Reader, t: Tensor, at: tuple[Index, ...], guards: tuple[Expr, ...]) -> Expr:
    a = t.attr("axis")
    moved = at[a] * t.attr("stride") + at[-1] * t.attr("dilation")
    return r.value(t.args[0], (*at[:a], moved, *at[a + 1 : -1]), guards)


def _conv(r: Reader, t: Tensor, at: tuple[Index, ...], guards: tuple[Expr, ...]) -> Expr:
    """A sum over kernel positions and channels, channels innermost: where tiles divide the channels, one kernel position
    serves a whole tile. A convolution of channels one by one (depthwise) is a sum over a window."""
    x, w = t.args
    sizes, n = concrete(w.shape), x.rank - 2
    pads, per_out = t.attr("pads"), sizes[0] // t.attr("groups")
    taps, inner = sizes[2:], sizes[1]
    axis = r.fresh(math.prod(taps) * inner, at, "r" if inner > 1 else WINDOW)
    if axis.size == 0:
        raise Unfusable("an empty contraction")
    *tap, c = unravelled(index(axis), (*taps, inner))
    padded = x
    for i, (lo, hi) in enumerate(zip(pads[:n], pads[n:]), 2):
        padded = make("pad", (padded,), {"axis": i, "lo": lo, "hi": hi, "value": 0.0}) if lo or hi else padded
    place = (i * s + k * d for i, s, k, d in zip(at[2:], t.attr("strides"), tap, t.attr("dilations")))
    channel = (at[1] // per_out if per_out < sizes[0] else Index()) * inner + c
    image, weight = r.value(padded, (at[0], channel, *place), guards), r.value(w, (at[1], c, *tap), guards)
    return r.b.reduce("sum", axis, r.b.mul(image, weight))


def _gather(r: Reader, t: Tensor, at: tuple[Index, ...], guards: tuple[Expr, ...]) -> Expr:
    table, picks = t.args
    if table not in r.of:
        raise Unfusable("a gather from a value that is not in memory")
    a, buffer = t.attr("axis"), r.buffers[r.of[table]]
    where = r.value(picks, at[a : a + picks.rank], guards)
    rest = (*at[:a], *at[a + picks.rank :])
    strides = (*buffer.strides[:a], *buffer.strides[a + 1 :])
    sizes = (*buffer.shape[:a], *buffer.shape[a + 1 :])
    place = Index()
    for i, stride, size in zip(rest, strides, sizes, strict=True):
        place = place + i * stride if size > 1 else place
    return r.b.load(r.of[table], place, buffer.dtype, ((where, buffer.strides[a]),), guards)


_RULES: dict[str, Rule] = {
    "full": _full, "iota": _iota, "cast": _cast, "sum": _reduce, "max": _reduce, "min": _reduce, "prod": _reduce,
    "matmul": _matmul, "reshape": _reshape, "permute": _permute, "slice": _slice, "flip": _flip, "concat": _concat,
    "pad": _pad, "windows": _windows, "conv": _conv, "gather": _gather,
    "broadcast_to": lambda r, t, at, guards: r._operand(t.args[0], at, guards),
}  # fmt: skip


def kernel_of(
    root: Tensor | Sequence[Tensor], operands: Mapping[Tensor, str], buffers: Mapping[str, Buffer], out: str = "out"
) -> Kernel:
    """The kernel that computes a tensor from the leaves `operands` (leaf -> buffer name) into buffer `out`; of several
    tensors, the others into `out1`, `out2`, ….

    Several are computed over the axes of the largest one: each has as many elements, or is one value along some of its
    axes; or all are slices of one tensor, which then is computed once; or they agree in all axes but one, along which they lie
    side by side. Values that are written into a tensor in memory (`scatter_elements`) count by themselves: only their places
    are written, and what else the buffer should hold must be there. Raises Unfusable for others, and for ops that have
    no index expression (sorting, argmax).
    """
    from .kir_beside import side_by_side
    from .kir_halves import cut, halved

    builder = Builder()
    roots = [root] if isinstance(root, Tensor) else list(root)
    atomic = expand_all(roots)
    for leaf in topological(atomic):
        if leaf.is_leaf and leaf not in operands:
            raise Unfusable(f"{leaf!r} is no operand")
    names = [f"out{n}" if n else out for n in range(len(atomic))]
    spaces = [t.args[2] if t.op == "scatter_elements" else t for t in atomic]
    sliced = sliced_alike(atomic)
    beside = None if sliced else side_by_side(atomic, spaces, operands, buffers)
    joined = beside.axis if beside is not None else -1
    widest = max(range(len(spaces)), key=lambda n: (math.prod(concrete(spaces[n].shape)), -n))
    shape = concrete(atomic[0].args[0].shape if sliced else spaces[widest].shape)
    if beside is not None:
        shape = (*shape[:joined], sum(concrete(x.shape)[joined] for x in spaces), *shape[joined + 1 :])
    largest = buffers[out if sliced else names[widest]]
    if 0 in shape:
        raise Unfusable("no elements")
    lying = sorted(range(len(shape)), key=lambda n: -largest.strides[n])  # axes in the order of the result's memory
    axes = tuple(Axis(f"i{lying.index(n)}", d) for n, d in enumerate(shape))
    at = tuple(map(index, axes))
    reader = Reader(builder, operands, buffers)
    stores: list[Store] = []
    lying_in: dict[str, tuple[dict[Axis, Index], tuple[Expr, ...]]] = {}
    before = 0
    for t, own, name in zip(atomic, spaces, names):
        guards: tuple[Expr, ...] = ()
        change: dict[Axis, Index] = {}
        if sliced:
            here, guards = _within_slice(builder, t, at)
            value = reader.value(t.args[0], at)
        elif beside is not None:
            size = concrete(own.shape)[joined]
            (*_, moved), guards = _within(builder, (at[joined],), 0, before, size)
            reader.moved |= beside.moved(own, moved)
            before += size
            local = Axis(
                f"{axes[joined].name}_", size
            )  # where an index lies in one result is known, so that nothing is divided
            here = (*at[:joined], index(local), *at[joined + 1 :])
            change = {local: moved}
            value = reader.value(own, here, guards)
        else:
            here = _along(own, at, shape)
            value = reader.value(own, here)
        stores.append(_placed(reader, t, here, name, value, guards))
        lying_in[name] = change, guards
    kernel = cut(Kernel(tuple(a for n in lying if (a := axes[n]).size > 1), tuple(stores), buffers, builder))
    kernel = replace(kernel, stores=tuple(_joined(reader, s, *lying_in[s.buffer]) for s in kernel.stores))
    overwritten = {operands[t.args[0]] for t in atomic if t.op == "scatter_elements"}
    if any(e.op == "load" and e.value[0] in overwritten for e in kernel.exprs):
        raise Unfusable("it reads what it writes into")
    return halved(normalized(kernel))


def _joined(r: Reader, store: Store, change: Mapping[Axis, Index], guards: tuple[Expr, ...]) -> Store:
    """A store over the axes that results side by side share."""
    if not change:
        return store
    moved = r.b.substituted(store.exprs, change)
    return store.moved(store.at.replaced(change), _loosened(r, moved, guards))


def _placed(
    r: Reader, t: Tensor, here: tuple[Index, ...], name: str, value: Expr, guards: tuple[Expr, ...]
) -> Store:  # fmt: skip
    """Where an element of a root goes: its index is in the root, or in what is written into a tensor."""
    buffer, place, parts = r.buffers[name], Index(), []
    axis = t.attr("axis") if t.op == "scatter_elements" else -1
    if axis >= 0:
        base = r.of.get(t.args[0])
        if base is None or t.attr("mode") != "set" or r.buffers[base] != buffer:
            raise Unfusable("values written into what is not in memory, or not in their place")
        size = buffer.shape[axis]
        where = _from_the_start(r.b, r.value(t.args[1], here, guards), size)
        if where.op in ("index", "const"):
            place = _as_index(where) * buffer.strides[axis]
            if not (_as_index(where).range[0] >= 0 and _as_index(where).range[1] < size):
                raise Unfusable("places that are not there")
        else:
            parts.append((where, buffer.strides[axis]))
            ends = (r.b.const(-1, "int"), where), (where, r.b.const(size, "int"))  # nothing else is written over
            guards = (*guards, *(r.b.pointwise("lt", pair) for pair in ends))
    for n, (i, stride, size) in enumerate(zip(here, buffer.strides, buffer.shape, strict=True)):
        place = place + i * stride if size > 1 and n != axis else place
    return Store(name, place, value, guards, tuple(parts))


def _from_the_start(b: Builder, where: Expr, size: int) -> Expr:
    """A place along an axis; negative ones count from its end."""
    if where.op in ("index", "const"):
        return b.index(_as_index(where) + size) if _as_index(where).range[1] < 0 else where
    zero = b.const(0, "int")
    if where.op == "where" and where.args[0].op == "lt" and where.args[0].args == (where.args[2], zero):
        return where  # said already
    return b.pointwise(
        "where", (b.pointwise("lt", (where, zero)), b.pointwise("add", (where, b.const(size, "int"))), where)
    )


def _within(
    b: Builder, at: tuple[Index, ...], axis: int, before: int, size: int
) -> tuple[tuple[Index, ...], tuple[Expr, ...]]:
    """The index in one of several results side by side, and the conditions that it is there."""
    guards = b.less(index(before - 1), at[axis]), b.less(at[axis], index(before + size))
    return (*at[:axis], at[axis] - before, *at[axis + 1 :]), tuple(g for g in guards if g.op != "const")


def _loosened(r: Reader, exprs: Sequence[Expr], guards: tuple[Expr, ...]) -> list[Expr]:
    """Expressions that are used where guards hold, without these guards of loads that stay inside their buffers anyway: what
    several results share is then one value."""

    def one(e: Expr, args: tuple[Expr, ...]) -> Expr | None:
        if e.op != "load":
            return None
        operand, at, steps, _ = e.value
        buffer, (low, high) = r.buffers[operand], at.range
        if low < 0 or high > sum((d - 1) * s for d, s in zip(buffer.shape, buffer.strides)):
            return None
        kept = (g for g in args[len(steps) :] if g not in guards)
        return r.b.make("load", (*args[: len(steps)], *kept), e.value, e.kind)

    return r.b.rebuilt(exprs, one)


def sliced_alike(roots: Sequence[Tensor]) -> bool:
    """Whether several tensors are slices of one without gaps inside, along one axis, none of which overlap."""
    if len(roots) < 2 or any(t.op != "slice" or t.attr("step") != 1 for t in roots):
        return False
    if len({(t.args[0], t.attr("axis")) for t in roots}) > 1:
        return False
    ranges = sorted((t.attr("start"), t.attr("start") + t.shape[t.attr("axis")]) for t in roots)
    return all(a[1] <= b[0] for a, b in pairwise(ranges))


def _within_slice(b: Builder, t: Tensor, at: tuple[Index, ...]) -> tuple[tuple[Index, ...], tuple[Expr, ...]]:
    """The index in a slice of an element of the whole, and the conditions that it is there."""
    a, start = t.attr("axis"), t.attr("start")
    return _within(b, at, a, start, int(t.shape[a]))


def _along(t: Tensor, at: tuple[Index, ...], shape: tuple[int, ...]) -> tuple[Index, ...]:
    """The index in a result of an element of the largest one."""
    own = concrete(t.shape)
    if math.prod(own) == math.prod(shape):
        return unravelled(linear(at, shape), own)
    if len(own) == len(shape) and all(d in (1, whole) for d, whole in zip(own, shape)):
        return tuple(Index() if d == 1 else i for d, i in zip(own, at))
    raise Unfusable(f"results of {shape} and {own} elements")


# ---------------------------------------------------------------- axes in normal form
def normalized(kernel: Kernel) -> Kernel:
    """Neighbouring parallel axes that every index treats as one are merged; axes that indices divide are split; a reduction
    runs along memory."""
    return _by_memory(_split(_merged(kernel)))


def _indices(kernel: Kernel) -> Iterator[Index]:
    for e in kernel.exprs:
        if e.op in ("index", "load"):
            yield e.value if e.op == "index" else e.value[1]
    for s in kernel.stores:
        yield s.at


def _with_axes(kernel: Kernel, axes: tuple[Axis, ...], change: Mapping[Axis, Index]) -> Kernel:
    moved = partial(kernel.builder.substituted, change=change)
    stores = tuple(s.moved(s.at.replaced(change), moved(s.exprs)) for s in kernel.stores)
    return replace(kernel, axes=axes, stores=stores)


def _divided(kernel: Kernel, axis: Axis) -> list[int]:
    """Numbers by which an axis is divided on its own."""
    return [d.by for i in _indices(kernel) for d in i.divisions() if d.index == index(axis)]


def _merged(kernel: Kernel) -> Kernel:
    position = 0
    while position + 1 < len(kernel.axes):
        outer, inner = kernel.axes[position : position + 2]
        both = Axis(outer.name + inner.name, outer.size * inner.size)
        quotient, rest = index(both).split(inner.size)
        if all(
            (d := i.replaced({outer: quotient, inner: rest})) is not None
            and both not in {a for x in d.divisions() for a in x.index.axes}
            for i in _indices(kernel)
        ):
            axes = (*kernel.axes[:position], both, *kernel.axes[position + 2 :])
            kernel = _with_axes(kernel, axes, {outer: quotient, inner: rest})
        else:
            position += 1
    return kernel


def _split(kernel: Kernel) -> Kernel:
    """Without reductions nothing wants rows of an axis' parts, and vectors that end with such a part would be short."""
    position, whole = 0, not kernel.reductions
    while position < len(kernel.axes):
        axis = kernel.axes[position]
        fits = (n for n in _divided(kernel, axis) if 1 < n < axis.size and axis.size % n == 0)
        by = min((n for n in fits if not whole or n < LANES or n % LANES == 0), default=0)
        if by:
            high, low = Axis(axis.name + "a", axis.size // by), Axis(axis.name + "b", by)
            axes = (*kernel.axes[:position], high, low, *kernel.axes[position + 1 :])
            kernel = _with_axes(kernel, axes, {axis: index(high) * by + index(low)})
        else:
            position += 1
    return kernel


def _by_memory(kernel: Kernel) -> Kernel:
    """Reductions over several nested axes take them in the order in which they lie in memory; products stay as they are."""
    change = {}
    products = {e.axis for e in kernel.reductions if len({f for f in factors(e.args[0])[0] if e.axis in f.axes}) > 1}
    for axis in dict.fromkeys(e.axis for e in kernel.reductions if e.axis not in products):
        steps: dict[tuple[int, int], int] = {}  # (elements of the axis in one step, steps) -> distance in memory
        for at in _indices(kernel):
            for atom, c in at.terms:
                if axis in ({atom} if isinstance(atom, Axis) else atom.index.axes):
                    digit = _digit(atom, axis)
                    steps[digit] = max(abs(c), steps.get(digit, 0))
        digits = sorted(steps)
        whole = all(low * size == after for (low, size), (after, _) in zip(digits, [*digits[1:], (axis.size, 1)]))
        order = sorted(digits, key=lambda d: steps[d])
        if whole and digits and digits[0][0] == 1 and order != digits:
            left, place = index(axis), Index()
            for low, size in order:  # the smallest distance is the innermost digit of the new order
                left, rest = left.split(size) if (low, size) != order[-1] else (Index(), left)
                place = place + rest * low
            change[axis] = place
    values = kernel.builder.substituted([s.value for s in kernel.stores], change) if change else ()
    return kernel.with_values(values) if change else kernel


def _digit(atom: Axis | Division, axis: Axis) -> tuple[int, int]:
    """Which digit of an axis an atom is, as (what one counts, how many there are); (0, 0): none."""
    if isinstance(atom, Axis):
        return 1, atom.size
    (inner, _) = atom.index.terms[0] if len(atom.index.terms) == 1 and not atom.index.const else (None, 0)
    low, size = _digit(inner, axis) if inner is not None and atom.index.terms[0][1] == 1 else (0, 0)
    if not low or size % atom.by:
        return 0, 0
    return (low, atom.by) if atom.rest else (low * atom.by, size // atom.by)


# ---------------------------------------------------------------- powers of two
LOG2E = math.log2(math.e)


def base_two(kernel: Kernel) -> Kernel:
    """Every exp(a - max(a)) as 2 ** (a' - max(a')), with the factor in a' = a * log2(e) joined to one that is there: the
    hardware's exponential is to base two."""
    b = kernel.builder
    scaled = {
        m: b.make("reduce", (_scaled(b, m.args[0]),), m.value, m.kind)
        for m in kernel.reductions
        if _exponents_only(kernel, m)
    }

    def change(e: Expr, args: tuple[Expr, ...]) -> Expr | None:
        if e.op == "exp" and e.args[0].op == "sub" and e.args[0].args[1] in scaled:
            m = scaled[e.args[0].args[1]]
            return b.make("exp2", (b.pointwise("sub", (m.args[0], m)),))
        return None

    return kernel.with_values(b.rebuilt([s.value for s in kernel.stores], change)) if scaled else kernel


def _exponents_only(kernel: Kernel, m: Expr) -> bool:
    """Whether a maximum serves only to shift exponents of its own body, which contains no other such maximum."""
    if m.op != "reduce" or m.value[0] != "max" or any(x.op == "reduce" and x.value[0] == "max" for x in walk(m.args)):
        return False
    users = [e for e in kernel.exprs if m in e.args]
    shifts = all(u.op == "sub" and u.args[0] is m.args[0] and u.args[1] is m for u in users)
    stored = any(s.value is m for s in kernel.stores)
    return shifts and not stored and all(e.op == "exp" for e in kernel.exprs if any(u in e.args for u in users))


def _scaled(b: Builder, e: Expr) -> Expr:
    """e * log2(e), the factor moved to a number that is there."""
    if e.op == "const":
        return b.const(e.value * LOG2E)
    if e.op == "mul" and e.args[1].op == "const":
        return b.mul(e.args[0], b.const(e.args[1].value * LOG2E))
    if e.op in ("add", "sub"):
        return b.pointwise(e.op, (_scaled(b, e.args[0]), _scaled(b, e.args[1])))
    if e.op == "where":
        return b.pointwise("where", (e.args[0], _scaled(b, e.args[1]), _scaled(b, e.args[2])))
    return b.mul(e, b.const(LOG2E))


# ---------------------------------------------------------------- scales that leave a loop
def scaled_early(kernel: Kernel) -> Kernel:
    """Factors of a product that no loop around it moves join that side of it that stays as well: queries are multiplied by
    their norm and the softmax's scale once, not the scores of every tile (DEFER the other way round).

    A number alone stays where it is if the side is plain memory: scaling that would cost a rounding and save one product.
    """
    b, held = kernel.builder, set(kernel.axes)

    def change(e: Expr, args: tuple[Expr, ...]) -> Expr | None:
        if e.op != "mul":
            return None
        over, under = factors(b.make("mul", args))
        for d in over:
            around = d.axes - held
            if d.op != "reduce" or d.value[0] != "sum" or d.kind != "float" or not around:
                continue
            sides, below = factors(d.args[0])
            still = [f for f in sides if not f.axes & around]
            moved = [f for f in over if f is not d and not f.axes & around]
            lowered = [f for f in under if not f.axes & around]
            plain = all(f.op == "load" or (f.op == "cast" and f.args[0].op == "load") for f in still)
            if below or not still or len(still) == len(sides) or not [*moved, *lowered]:
                continue
            if plain and all(f.op == "const" for f in (*moved, *lowered)):
                continue
            side = b.product([*still, *moved], lowered)
            body = b.mul(side, b.product([f for f in sides if f not in still], []))
            rest = [f for f in over if f is not d and f not in moved], [f for f in under if f not in lowered]
            return b.product([b.make("reduce", (body,), d.value, d.kind), *rest[0]], rest[1])
        return None

    return kernel.with_values(b.rebuilt([s.value for s in kernel.stores], change))
