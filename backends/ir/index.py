"""Integer index expressions of generated kernels: affine in axes, with quotients and remainders by constants.

Every axis runs from 0 to its size. Expressions are kept in a normal form, simplified by value ranges, so that splitting
and merging axes (reshape) leaves no unnecessary division.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import gcd
from typing import Any

from ...egraph.ir.memo import memo

WIDE = 1 << 31  # elements beyond which positions need 64 bits
WINDOW = "w"  # name prefix of axes over the elements of a window; other axes move the window


@dataclass(frozen=True)
class Axis:
    """A loop variable or grid index that runs over range(size)."""

    name: str
    size: int

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Division:
    """Quotient `index // by` of an index by a positive constant; if `rest`, the remainder `index % by` instead."""

    index: Index
    by: int
    rest: bool

    def __hash__(self) -> int:  # cached, because indices are nested
        found: int | None = self.__dict__.get("hashed")
        if found is None:
            found = self.__dict__["hashed"] = hash((self.index, self.by, self.rest))
        return found

    def __reduce__(self) -> tuple[Any, ...]:  # without the cached hash: string hashes differ between processes
        return Division, (self.index, self.by, self.rest)

    def __repr__(self) -> str:
        return f"({self.index!r}) {'%' if self.rest else '//'} {self.by}"


Atom = Axis | Division


@memo(1 << 16)
def _name(atom: Atom) -> str:
    return repr(atom)


def _key(term: tuple[Atom, int]) -> tuple[str, int]:
    return _name(term[0]), term[1]


@dataclass(frozen=True)
class Index:
    """An integer expression `sum(coefficient * atom) + const` in normal form; an atom is an axis or a division. Made by
    `index`, the operators and `split`."""

    terms: tuple[tuple[Atom, int], ...] = ()
    const: int = 0

    def __hash__(self) -> int:
        found: int | None = self.__dict__.get("hashed")
        if found is None:
            found = self.__dict__["hashed"] = hash((self.terms, self.const))
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        return Index, (self.terms, self.const)

    def __add__(self, other: Index | int) -> Index:
        other = index(other)
        if not other.terms:
            return Index(self.terms, self.const + other.const) if other.const else self
        found = dict(self.terms)
        for atom, c in other.terms:
            found[atom] = found.get(atom, 0) + c
        return _made(found, self.const + other.const)

    def __mul__(self, factor: int) -> Index:
        return Index(tuple((a, c * factor) for a, c in self.terms) if factor else (), self.const * factor)

    def __sub__(self, other: Index | int) -> Index:
        return self + index(other) * -1

    def __floordiv__(self, by: int) -> Index:
        return self.split(by)[0]

    def __mod__(self, by: int) -> Index:
        return self.split(by)[1]

    def split(self, by: int) -> tuple[Index, Index]:
        """(quotient, remainder) of the index divided by the positive constant `by`, both simplified."""
        if by == 1:
            return self, Index()
        whole = Index(tuple((a, c // by) for a, c in self.terms if c % by == 0), self.const // by)
        rest = Index(tuple((a, c) for a, c in self.terms if c % by), self.const % by)
        low, high = rest.range
        if low < 0:  # C, CUDA and Triton round quotients toward zero: dividends are kept non-negative
            turns = -(low // by)
            whole, rest = whole - turns, rest + turns * by
            low, high = rest.range
        if high < by:
            return whole, rest
        for step in sorted({gcd(c, by) for _, c in rest.terms} - {1, by}, reverse=True):
            small = Index(tuple((a, c) for a, c in rest.terms if c % step), rest.const % step)
            low, high = small.range
            if low >= 0 and high < step:  # (step * a + small) // by is a // (by // step)
                steps = Index(tuple((a, c // step) for a, c in rest.terms if c % step == 0), rest.const // step)
                quotient, left = steps.split(by // step)
                return whole + quotient, left * step + small
        return whole + _division(rest, by, remainder=False), _division(rest, by, remainder=True)

    @cached_property
    def range(self) -> tuple[int, int]:
        """Minimum and maximum value of the index over all values of its axes."""
        low = high = self.const
        for atom, c in self.terms:
            a, b = atom_range(atom)
            low, high = low + min(c * a, c * b), high + max(c * a, c * b)
        return low, high

    @cached_property
    def axes(self) -> frozenset[Axis]:
        """Axes that the index depends on."""
        return frozenset(x for atom, _ in self.terms for x in ({atom} if isinstance(atom, Axis) else atom.index.axes))

    def replaced(self, change: Mapping[Axis, Index]) -> Index:
        """This index with axes replaced: `change` maps an axis to the index in its place."""
        if not self.axes & change.keys():
            return self
        found = Index((), self.const)
        for atom, c in self.terms:
            if isinstance(atom, Axis):
                new = change.get(atom, index(atom))
            else:
                quotient, rest = atom.index.replaced(change).split(atom.by)
                new = rest if atom.rest else quotient
            found = found + new * c
        return found

    def coefficient(self, axis: Axis) -> int:
        """Factor by which `axis` is multiplied in the index, divisions not counted; 0 if the axis does not occur
        outside of them."""
        return dict(self.terms).get(axis, 0)

    def divisions(self) -> Iterable[Division]:
        """Yields all divisions in the index, outer ones before those inside them."""
        for atom, _ in self.terms:
            if isinstance(atom, Division):
                yield atom
                yield from atom.index.divisions()

    @cached_property
    def atoms(self) -> frozenset[Atom]:
        """The atoms (axes and divisions) of the index, and the atoms nested in them."""
        return frozenset(a for x, _ in self.terms for a in (x, *(() if isinstance(x, Axis) else x.index.atoms)))

    def text(self, name: Callable[[Axis], str]) -> str:
        """Python expression of the index; `name` returns the Python expression of an axis."""
        parts = []
        for atom, c in self.terms:
            if isinstance(atom, Axis):
                inner = name(atom)
            else:
                inner = atom.index.text(name)
                inner = f"({inner})" if len(atom.index.terms) > 1 or atom.index.const else inner
                inner = f"({inner} {'%' if atom.rest else '//'} {atom.by})"
            parts.append(inner if c == 1 else f"{inner} * {c}")
        if self.const or not parts:
            parts.append(str(self.const))
        return " + ".join(parts)

    def __repr__(self) -> str:
        return self.text(repr)


def index(value: Axis | Index | int) -> Index:
    """The Index with the value of an axis, an integer or another Index; an axis of size 1 is always 0."""
    if isinstance(value, Index):
        return value
    if isinstance(value, Axis):
        return Index(((value, 1),)) if value.size > 1 else Index()
    return Index((), value)


def linear(indices: Iterable[Index], shape: Iterable[int]) -> Index:
    """Row-major position, in an array of the given shape, of the element at `indices`."""
    found = Index()
    for i, size in zip(indices, shape, strict=True):
        found = found * size + i
    return found


def unravelled(position: Index, shape: tuple[int, ...]) -> tuple[Index, ...]:
    """Indices, in an array of the given shape, of the element at the row-major `position`."""
    found = []
    for size in reversed(shape):
        position, rest = position.split(size) if size != 1 else (position, Index())
        found.append(rest)
    return tuple(reversed(found))


def atom_range(atom: Atom) -> tuple[int, int]:
    """Minimum and maximum value of `atom`, which is an axis or a division."""
    if isinstance(atom, Axis):
        return 0, atom.size - 1
    low, high = atom.index.range
    return (0, atom.by - 1) if atom.rest else (low // atom.by, high // atom.by)


def _made(terms: Mapping[Atom, int], const: int) -> Index:
    """The index of these terms in normal form, in which `x // n * n * c + x % n * c` is `x * c`."""
    for atom, c in terms.items():
        if c and isinstance(atom, Division) and atom.rest:
            whole = Division(atom.index, atom.by, rest=False)
            if terms.get(whole) == c * atom.by:
                left = Index(tuple((a, k) for a, k in terms.items() if k and a not in (atom, whole)), const)
                return left + atom.index * c
    return Index(tuple(sorted(((a, c) for a, c in terms.items() if c), key=_key)), const)


def _division(rest: Index, by: int, remainder: bool) -> Index:
    """A quotient or remainder atom, folded if constant."""
    return (
        Index(((Division(rest, by, remainder), 1),))
        if rest.terms
        else index(rest.const % by if remainder else rest.const // by)
    )
