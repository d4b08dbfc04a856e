"""A kernel's axes in normal form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial

from .index import Axis, Division, Index, index
from .kir import Kernel, factors

LANES = 8  # elements of the longest vector in memory


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
