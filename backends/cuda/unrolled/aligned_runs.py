"""Merges accesses whose indices differ by constants into vector accesses of up to 16 bytes (aligned runs of memory)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import gcd

from ...ir.expr import Expr
from ...ir.index import Index
from ...ir.simplify import as_index


@dataclass(frozen=True)
class AlignedRun:
    """Aligned run of contiguous elements that a thread accesses. `buffer`: name of the operand or result; `terms`: the
    index without its constant term; `start`: constant term of the run's first element; `guards`: conditions under which
    it is accessed."""

    buffer: str
    terms: Index
    start: int
    guards: frozenset[object]


def aligned(at: Index, itemsize: int, elements: int) -> int:
    """Length of the longest aligned vector access that may contain the element at the index `at`, in elements of
    `itemsize` bytes (16 bytes at most): the offset of the element in the vector is a constant, since all terms of the
    index but the constant one are multiples of the length. `elements`: length of the buffer."""
    steps = gcd(elements, *(c for _, c in at.terms))
    return gcd(16 // itemsize, steps) if itemsize <= 16 else 1


def run_of(buffer: str, at: Index, guards: Sequence[Expr], width: int) -> AlignedRun:
    """The aligned run of `width` elements of `buffer` that contains the index `at`.

    Guards that are uniform over the run are normalized, so that runs with equivalent guards are equal.
    """
    return AlignedRun(buffer, at - at.const, at.const // width * width, frozenset(_over_run(g, width) for g in guards))


def _over_run(guard: Expr, width: int) -> object:
    """A key of a condition, equal for conditions that have the same value over a whole run."""
    if guard.op == "lt" and all(a.op in ("index", "const") and a.kind == "int" for a in guard.args):
        below = as_index(guard.args[0]) - as_index(guard.args[1])
        if all(c % width == 0 for _, c in below.terms):
            return below.terms, below.const // width
    return guard


def covering(places: Sequence[int], width: int) -> tuple[int, int]:
    """The smallest aligned vector, within a run of `width` elements, that covers the sorted positions `places`, as
    (first element, number of elements)."""
    size = 1
    while places[0] // size != places[-1] // size:
        size *= 2
    return places[0] // size * size, min(size, width)


def aligned_vectors(places: Sequence[int], width: int) -> Iterator[tuple[int, int]]:
    """Yields (first position, number of elements) of aligned vectors, at most `width` long, that together contain
    exactly the sorted positions `places`."""
    left = list(places)
    while left:
        size = width
        while left[0] % size or left[:size] != list(range(left[0], left[0] + size)):
            size //= 2
        yield left[0], size
        left = left[size:]


__all__ = ["AlignedRun", "aligned", "aligned_vectors", "covering", "run_of"]
