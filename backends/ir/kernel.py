"""Defines kernels in the kernel IR: the computation of one generated kernel as stores of scalar expressions over named
axes.

The IR has no tiles, loops or threads: an emitter adds them according to a schedule. Expressions: expr.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from typing import Any

from .expr import LONG, Builder, Expr, walk
from .index import Axis, Index

Strides = tuple[int, ...]
PROBE = "probe"  # kernel name for test emissions, which only find out whether a kernel can be emitted


@dataclass(frozen=True)
class Buffer:
    """An operand or result in memory: its dtype, and sizes and strides of its axes in elements."""

    dtype: str
    shape: tuple[int, ...]
    strides: Strides

    @property
    def span(self) -> int:
        """Number of elements of memory from the first to the last one."""
        return 1 + sum((d - 1) * s for d, s in zip(self.shape, self.strides))


@dataclass(frozen=True)
class OutputStore:
    """One result of a kernel. At each point of the kernel's axes at which all `guards` hold, `value` is stored in
    `buffer` at position `at`, plus `parts`: data-dependent terms of the position with their strides (a scatter).
    Elements that are not stored remain unchanged. `adds`: the value is added to the element there instead, as other
    points' values are."""

    buffer: str
    at: Index
    value: Expr
    guards: tuple[Expr, ...] = ()
    parts: tuple[tuple[Expr, int], ...] = ()
    adds: bool = False

    @property
    def exprs(self) -> tuple[Expr, ...]:
        """All expressions of the store: value, guards, data-dependent positions."""
        return (self.value, *self.guards, *(e for e, _ in self.parts))

    def moved(self, at: Index, exprs: Sequence[Expr]) -> OutputStore:
        """A copy of the store that writes at the index `at`, with `exprs` in place of its own expressions (in the order
        of `OutputStore.exprs`)."""
        value, *more = exprs
        guards, picks = more[: len(self.guards)], more[len(self.guards) :]
        return replace(
            self, at=at, value=value, guards=tuple(guards), parts=tuple((e, c) for e, (_, c) in zip(picks, self.parts))
        )


@dataclass(frozen=True)
class Kernel:
    """A kernel in the IR: results over parallel axes (outermost first), computed from operands.

    `stores`: the results. `buffers`: operands and results by name. `builder`: where its expressions were made, each
    once.
    """

    axes: tuple[Axis, ...]
    stores: tuple[OutputStore, ...]
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

    @cached_property
    def scans(self) -> list[Expr]:
        """All scans (running sums), inner ones first."""
        return [e for e in self.exprs if e.op == "scan"]

    @cached_property
    def long(self) -> bool:
        """Whether expressions nest so deeply that emitters must not recurse into operands."""
        depth: dict[Expr, int] = {}
        for e in self.exprs:
            depth[e] = 1 + max((depth[a] for a in e.args), default=0)
        return max(depth.values(), default=0) > LONG

    @cached_property
    def compute_dtype(self) -> str:
        """Dtype in which generated kernels compute floats: float64 if an operand or result has it, else float32."""
        return "float64" if any(b.dtype == "float64" for b in self.buffers.values()) else "float32"

    @cached_property
    def adds(self) -> bool:
        """Whether a result is a sum that the kernel adds to in memory (`OutputStore.adds`)."""
        return any(s.adds for s in self.stores)

    @cached_property
    def stored_sides(self) -> frozenset[Axis]:
        """Reduction axes along which a result is stored: those of products whose left operand is also a result of the
        kernel."""
        return frozenset(a for s in self.stores for a in s.at.axes if a not in self.axes)

    @cached_property
    def work(self) -> int:
        """Number of distinct operations and loads in the kernel's expressions."""
        return sum(e.op not in ("const", "index") for e in self.exprs)

    @cached_property
    def held(self) -> int:
        """Maximum number of simultaneously live values if expressions are computed in order (register pressure)."""
        order = [e for e in self.exprs if e.op not in ("const", "index")]
        last = {a: n for n, e in enumerate(order) for a in e.args}
        change = [0] * (len(order) + 1)
        for n, e in enumerate(order):
            change[n] += 1
            change[max(last.get(e, n), n) + (e in last)] -= 1
        return max(accumulate(change), default=0)

    def with_values(self, values: Sequence[Expr], **change: Any) -> Kernel:
        """A copy of the kernel that stores `values` in place of its stores' values, one for each store; `change`: other
        fields of the kernel to replace."""
        stores = tuple(replace(s, value=v) for s, v in zip(self.stores, values, strict=True))
        return replace(self, stores=stores, **change)

    def __str__(self) -> str:
        """A listing: one line per load, reduction, or value that is used more than once."""
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
    if e.op in ("reduce", "scan"):
        until = f" up to {args[1]}" if e.op == "scan" else ""
        return f"{e.value[0]}({args[0]} for {e.value[1]}<{e.value[1].size}{until})"
    if e.op in ("const", "index"):
        return repr(e.value)
    return f"{e.op}({', '.join(args)})"
