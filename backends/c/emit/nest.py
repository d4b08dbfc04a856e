"""Builds the loop nest of a C function: the order of loops, the kind of reductions (row or column), and buffered row
values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any

from ...ir.expr import Builder, Expr, walk
from ...ir.index import Axis, Index, index
from ...ir.kernel import Kernel
from ...ir.op_texts import costly, flops
from ...ir.tiling import shape_of
from ...ir.unfusable import Unfusable, if_fusable
from .few_rows import few_rows
from .spelling import DOUBLE, SINGLE, TYPES

ROW = 65536  # maximum elements of a row buffer: 256 KB of float32, a share of an L2 cache


@dataclass
class LoopScope:
    """C block of a loop over `axis` (None for other blocks).

    `head`: the lines before the block, such as the `for`. `items`: statements and nested blocks in order. `known`:
    variables of the values computed in the block.
    """

    parent: LoopScope | None
    axis: Axis | None
    head: list[str] = field(default_factory=list)
    items: list[str | LoopScope] = field(default_factory=list)
    known: dict[Expr, str] = field(default_factory=dict)

    @cached_property
    def bound(self) -> frozenset[Axis]:
        """Axes of the loops around this block's statements, its own included."""
        outer: frozenset[Axis] = self.parent.bound if self.parent is not None else frozenset()
        return outer | ({self.axis} if self.axis is not None else set())

    def opened(self, axis: Axis | None, *head: str) -> LoopScope:
        """New block nested in this one, with the lines `head` before it; `axis`: axis of its loop, None for no loop.
        `LoopScope.close` inserts it, so that statements hoisted out of it come first."""
        return LoopScope(self, axis, list(head))

    def close(self) -> None:
        """Append the finished block to the block around it."""
        assert self.parent is not None
        self.parent.items.append(self)

    @property
    def innermost(self) -> bool:
        """Whether no blocks are nested in this one."""
        return not any(isinstance(item, LoopScope) for item in self.items)

    def text(self, depth: int) -> Iterator[str]:
        """Yields the block's lines of C, indented by `depth` levels."""
        pad = "    " * depth
        *pragmas, loop = self.head
        yield from (pad + line for line in pragmas)
        yield f"{pad}{loop} {{" if loop else f"{pad}{{"
        for item in self.items:
            yield from item.text(depth + 1) if isinstance(item, LoopScope) else [f"{pad}    {item}"]
        yield f"{pad}}}"


@dataclass
class LoopNest:
    """Emitter of the loops of a kernel's C function, with its state: the order of the axes, types, accumulators, and
    the values that are in variables so far."""

    kernel: Kernel
    name: str
    integers: bool = False  # sums over packed numbers as integer dot products
    count: int = 0

    def __post_init__(self) -> None:
        kernel = self.kernel
        dtypes_ = {b.dtype for b in kernel.buffers.values()}
        if not dtypes_ <= TYPES.keys():
            raise Unfusable(f"no C type for {', '.join(sorted(dtypes_ - TYPES.keys()))}")
        self.wide = kernel.compute_dtype == "float64"
        self.real, self.spelling = ("double", DOUBLE) if self.wide else ("float", SINGLE)
        self.few_rows = few_rows(kernel) if self.integers and not self.wide else None
        self.axes = self._ordered()
        self.inner = self.axes[-1] if self.axes else None
        self.block = 0  # accumulators per line
        self.columns = self.inner is not None and any(self._across(e) for e in kernel.reductions)
        self.uses: dict[Expr, int] = {}
        for e in kernel.exprs:
            for a in e.args:
                self.uses[a] = self.uses.get(a, 0) + 1
        self.same: dict[Expr, Expr] = {}
        self.split: dict[Any, Any] = {}  # (axis, row, order of chunks, words) -> the row as planes of integers
        self.lines: dict[Expr, str] = {}  # column reductions -> array of accumulators
        self.rows: dict[Expr, tuple[str, LoopScope]] = {}  # buffered row values -> (array, scope it is filled in)
        self.declared: dict[Expr, tuple[str, LoopScope]] = {}  # the same, while loops fill the arrays
        self.kept = {} if self.columns else self._kept()
        self._check()

    def _ordered(self) -> list[Axis]:
        """The parallel axes, outermost first; the axis with contiguous stores is innermost, or that over the rows that
        one pass over packed weights serves."""
        at = max((s.at for s in self.kernel.stores), key=lambda at: len(at.axes))
        steps = {a: abs(at.coefficient(a)) if a in dict(at.terms) else 1 << 62 for a in self.kernel.axes}
        return sorted(self.kernel.axes, key=lambda a: (a == self.few_rows, -steps[a]))

    def _across(self, e: Expr) -> bool:
        """Whether a reduction's operands are contiguous along the innermost parallel axis instead of the reduction
        axis."""
        if self.inner not in e.axes:
            return False
        loads = [x.value[1] for x in walk(e.args) if x.op == "load" and e.axis in x.value[1].axes]
        strided = [at for at in loads if abs(at.coefficient(e.axis)) != 1]
        return any(abs(at.coefficient(self.inner)) == 1 for at in strided)

    @cached_property
    def _joined(self) -> Mapping[Axis, Axis]:
        """Reduction axes that traverse the same elements as the innermost axis."""
        shape = if_fusable(shape_of, self.kernel, products=False)
        return {r: a for r, a in shape.joined.items() if a == self.inner} if shape is not None else {}

    def _alike(self, e: Expr) -> Expr:
        """The expression with the innermost axis in place of reduction axes that traverse the same elements
        (`_joined`): a key under which loops share values."""
        return moved(self.kernel.builder, e, {r: index(a) for r, a in self._joined.items()}, self.same)

    def _passes(self) -> list[tuple[Axis, tuple[Expr, ...]]]:
        """The innermost loops, as (axis, what is computed along it): of the reductions, then the one that writes all
        results."""
        loops = [(e.axis, e.args) for e in self.kernel.reductions]
        if self.inner is not None:
            loops.append((self.inner, tuple(e for s in self.kernel.stores for e in (s.value, *s.guards))))
        return loops

    def _kept(self) -> dict[Expr, Axis]:
        """Row values to buffer, because they are expensive and several loops need them: value, as a key of `_alike` ->
        axis of the row."""
        loops = self._passes()
        costly = self._costly()
        seen: dict[Expr, int] = {}
        over: dict[Expr, Axis] = {}
        for axis, bodies in loops:
            inside = {self._alike(e) for e in _inside(bodies, axis) if axis.size <= ROW and e in costly}
            for e in inside:
                seen[e] = seen.get(e, 0) + 1
                over[e] = self._joined.get(axis, axis)
        needed = self._needed(loops, {e for e, n in seen.items() if n > 1})
        return {e: over[e] for e in needed if _worth(e, over[e], needed - {e})}

    def _needed(self, loops: list[tuple[Axis, tuple[Expr, ...]]], shared: set[Expr]) -> set[Expr]:
        """The values among `shared` (keys of `_alike`) that several of the `loops` (axis, bodies) use: a loop uses the
        values that it computes, but of a value that an earlier loop has computed only the value, not its operands."""
        uses, done = dict.fromkeys(shared, 0), set[Expr]()
        read = lambda e: self._alike(e) in done
        for axis, bodies in loops:
            found = {self._alike(e) for e in _inside(bodies, axis, read)} & shared
            for e in found:
                uses[e] += 1
            done.update(found)
        return {e for e, n in uses.items() if n > 1}

    def computed_again(self) -> float:
        """Flops of expensive values in the loops after the first that computes them, where no row buffer has them."""
        known, again, costly = set[Expr](), 0.0, self._costly()
        read = lambda e: self._alike(e) in self.kept and self._alike(e) in known
        for axis, bodies in self._passes():
            inside = {self._alike(e): e for e in _inside(bodies, axis, read) if e in costly}
            repeats = [e for key, e in inside.items() if key in known and key not in self.kept]
            again += sum(flops(e.op) * prod(a.size for a in e.axes) for e in repeats)
            known.update(inside)
        return again

    def _costly(self) -> set[Expr]:
        """Float values that depend on an expensive operation."""
        found: set[Expr] = set()
        for e in self.kernel.exprs:
            if e.axes and (costly(e.op) or not found.isdisjoint(e.args)):
                found.add(e)
        return {e for e in found if e.kind == "float"}

    def _check(self) -> None:
        """Raises Unfusable for a reduction of booleans, which has no text."""
        if any(e.op == "reduce" and e.kind == "bool" for e in self.kernel.exprs):
            raise Unfusable("a reduction over booleans")


def moved(b: Builder, e: Expr, change: Mapping[Axis, Index], done: dict[Expr, Expr]) -> Expr:
    """The expression `e` rebuilt in builder `b` with free axes replaced by the indices `change`; a nested reduction
    keeps its own axis in the expression that it reduces. `done`: expressions replaced so far, with the results."""
    if e.axes.isdisjoint(change):
        return e
    if e not in done:
        own = {a: i for a, i in change.items() if e.op != "reduce" or a != e.axis}
        inner = done if len(own) == len(change) else {}
        args = [moved(b, a, own, inner) for a in e.args]
        if e.op == "load":
            operand, at, steps, dtype = e.value
            done[e] = b.make("load", args, (operand, at.replaced(change), steps, dtype), e.kind)
        else:
            done[e] = b.index(e.value.replaced(change)) if e.op == "index" else b.make(e.op, args, e.value, e.kind)
    return done[e]


def _inside(bodies: tuple[Expr, ...], axis: Axis, known: Callable[[Expr], bool] = lambda e: False) -> Iterator[Expr]:
    """Expressions evaluated in a loop over an axis, without nested reductions and without operands of those that are
    `known`."""
    stack, seen = [*bodies], set()
    while stack:
        e = stack.pop()
        if e in seen or axis not in e.axes or e.op == "reduce":
            continue
        seen.add(e)
        yield e
        stack += () if known(e) else e.args


def _worth(e: Expr, axis: Axis, others: set[Expr]) -> bool:
    """Whether a value of a row along `axis` is expensive to compute where the `others` are known."""
    inside = _inside((e,), axis, lambda x: x in others)
    return any(costly(x.op) for x in inside if x not in others)
