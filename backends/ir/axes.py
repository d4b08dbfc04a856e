"""Brings a kernel's axes to a normal form: merged, split and ordered so that kernels with the same loops get the same
axes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import count, islice

from .expr import Builder, Expr, factors, walk
from .index import Axis, Division, Index, index
from .kernel import Kernel

LANES = 8  # elements of the longest memory vector


def normalized(kernel: Kernel) -> Kernel:
    """`kernel` with its axes in normal form.

    Adjacent parallel axes that occur in all indices only as one row-major position are merged; axes by parts of which
    indices divide (`i // 8`, `i % 8`) are split; reductions iterate in memory order, and have an axis of their own if
    they are computed inside the loop of another reduction.
    """
    return _by_memory(_apart(_split(_merged(kernel))))


def _indices(kernel: Kernel) -> Iterator[Index]:
    """All index expressions of a kernel."""
    for e in kernel.exprs:
        if e.op in ("index", "load"):
            yield e.value if e.op == "index" else e.value[1]
    for s in kernel.stores:
        yield s.at


def _with_axes(kernel: Kernel, axes: tuple[Axis, ...], change: Mapping[Axis, Index]) -> Kernel:
    """The kernel over other parallel axes, with old axes replaced by indices."""
    moved = partial(kernel.builder.substituted, change=change)
    stores = tuple(s.moved(s.at.replaced(change), moved(s.exprs)) for s in kernel.stores)
    return replace(kernel, axes=axes, stores=stores)


def _divided(kernel: Kernel, axis: Axis) -> list[int]:
    """Divisors by which index expressions divide an axis alone (not a sum of axes)."""
    return [d.by for i in _indices(kernel) for d in i.divisions() if d.index == index(axis)]


def _merged(kernel: Kernel) -> Kernel:
    """Merge adjacent parallel axes that every index treats as one."""
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
    """Split axes at their divisors.

    In a kernel without reductions or scans, only where the inner part is short or keeps vectors of accesses whole.
    """
    position, whole = 0, not kernel.reductions and not kernel.scans
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


def _apart(kernel: Kernel) -> Kernel:
    """Give reductions that are recomputed in each iteration of another reduction's loop a different axis than that loop
    has.

    Example: queries are divided by their root mean square over the features, and a softmax runs over as many keys as
    there are features; on a shared axis, the mean would be taken at the softmax's current key. Reductions that can be
    computed before the loop keep the axis, and share loads along it.
    """
    while inner := _computed_inside(kernel):
        change = partial(_renamed, kernel.builder, inner, _others(kernel, {e.axis for e in inner}))
        exprs = iter(kernel.builder.rebuilt([e for s in kernel.stores for e in s.exprs], change))
        kernel = replace(kernel, stores=tuple(s.moved(s.at, [*islice(exprs, len(s.exprs))]) for s in kernel.stores))
    return kernel


def _others(kernel: Kernel, axes: Iterable[Axis]) -> dict[Axis, Axis]:
    """Each of the axes -> a new axis of the same size that no reduction uses."""
    taken = {e.axis.name for e in kernel.reductions}
    names = {a: next(n for k in count(1) if (n := f"{a.name}n{k}") not in taken) for a in axes}
    return {a: Axis(n, a.size) for a, n in names.items()}


def _renamed(
    b: Builder, inner: Container[Expr], new: Mapping[Axis, Axis], e: Expr, args: tuple[Expr, ...]
) -> Expr | None:
    return _over(b, b.make(e.op, args, e.value, e.kind), new[e.axis]) if e in inner else None


def _computed_inside(kernel: Kernel) -> set[Expr]:
    """Reductions nested in another one over the same axis that depend on axes bound between the two."""
    bound = {e.axis for e in kernel.reductions}
    several = Counter(e.axis for e in kernel.reductions)
    suspects = {e for e in kernel.reductions if several[e.axis] > 1 and not bound.isdisjoint(e.axes)}
    if not suspects:
        return suspects
    outer = [e for e in kernel.reductions if e.axis in {s.axis for s in suspects}]
    return {i for o in outer for i in walk(o.args) if i in suspects and i.axis == o.axis and not i.axes <= o.axes}


def _over(b: Builder, reduction: Expr, axis: Axis) -> Expr:
    """A reduction, and all reductions below it over the same axis, moved to another axis."""
    old, change = reduction.axis, {reduction.axis: index(axis)}

    def one(e: Expr, args: tuple[Expr, ...]) -> Expr | None:
        if e.op == "index":
            return b.index(e.value.replaced(change))
        if e.op == "load":
            operand, at, steps, dtype = e.value
            return b.make("load", args, (operand, at.replaced(change), steps, dtype), e.kind)
        return b.make("reduce", args, (e.value[0], axis), e.kind) if e.op == "reduce" and e.axis == old else None

    return b.rebuilt([reduction], one)[0]


def _by_memory(kernel: Kernel) -> Kernel:
    """Reorder nested reductions over several axes to iterate in memory order; matrix products are unchanged."""
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
            for low, size in order:  # the smallest stride becomes the innermost digit
                left, rest = left.split(size) if (low, size) != order[-1] else (Index(), left)
                place = place + rest * low
            change[axis] = place
    values = kernel.builder.substituted([s.value for s in kernel.stores], change) if change else ()
    return kernel.with_values(values) if change else kernel


def _digit(atom: Axis | Division, axis: Axis) -> tuple[int, int]:
    """(step, size) of the mixed-radix digit of an axis that an index atom extracts by `//` and `%`; (0, 0) if the atom
    is no such digit."""
    if isinstance(atom, Axis):
        return 1, atom.size
    (inner, _) = atom.index.terms[0] if len(atom.index.terms) == 1 and not atom.index.const else (None, 0)
    low, size = _digit(inner, axis) if inner is not None and atom.index.terms[0][1] == 1 else (0, 0)
    if not low or size % atom.by:
        return 0, 0
    return (low, atom.by) if atom.rest else (low * atom.by, size // atom.by)
