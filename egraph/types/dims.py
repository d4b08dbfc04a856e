"""Represents dimensions: ints, or symbolic integer polynomials in named sizes (`tg.dim("n")`) with floor division and
modulo.

A symbolic dimension has a canonical form, a sum of coefficient × sorted product of atoms, so equal expressions compare
equal and hash alike. An atom is a named size or an opaque `a // b` or `a % b`. Multiples of the divisor are moved out
of quotients and nested quotients are merged: `(8*h - 1) // 2 + 1` is `4*h`, and `(n // 2 + 1) // 2` is `(n + 2) // 4`.
So sizes derived in different ways compare equal.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import total_ordering
from math import prod
from numbers import Integral
from typing import TypeAlias

from ...errors import ShapeError


@total_ordering
@dataclass(frozen=True)
class Atom:
    """Factor of a dimension's terms: a size or a quotient that is not split further.

    `op` is 'size' for the size called `name`, which ranges from `min` to `max`; otherwise it is '//' or '%', the floor
    quotient or remainder of the two dimensions `args`.
    """

    op: str
    name: str = ""
    args: tuple[Dim, ...] = ()
    min: int = 1
    max: int = 1 << 31

    def __lt__(self, other: Atom) -> bool:
        return str(self) < str(other)

    def __str__(self) -> str:
        """Python syntax, in parentheses for quotients and remainders."""
        if self.op == "size":
            return self.name
        left, right = self.args
        return f"({_spelled(left, products=True)} {self.op} {_spelled(right)})"


@dataclass(frozen=True)
class DimExpr:
    """Symbolic dimension as a polynomial: `terms` pairs a sorted product of atoms with its non-zero coefficient."""

    terms: tuple[tuple[tuple[Atom, ...], int], ...]

    @staticmethod
    def of(dim: Dim) -> DimExpr:
        """Convert an int or a symbolic dimension to a `DimExpr`."""
        if isinstance(dim, DimExpr):
            return dim
        return DimExpr((((), int(dim)),)) if dim else DimExpr(())

    @staticmethod
    def _collect(pairs: Iterable[tuple[tuple[Atom, ...], int]]) -> Dim:
        """Canonical form of a sum of (atoms, coefficient) pairs; an int if no atoms remain."""
        total: dict[tuple[Atom, ...], int] = {}
        for atoms, factor in pairs:
            total[atoms] = total.get(atoms, 0) + factor
        kept = tuple(sorted(((a, f) for a, f in total.items() if f), key=lambda t: (len(t[0]), str(t[0]))))
        if not kept:
            return 0
        return kept[0][1] if len(kept) == 1 and not kept[0][0] else DimExpr(kept)

    def __add__(self, other: Dim) -> Dim:
        return DimExpr._collect((*self.terms, *DimExpr.of(other).terms))

    __radd__ = __add__

    def __neg__(self) -> Dim:
        return DimExpr._collect((a, -f) for a, f in self.terms)

    def __sub__(self, other: Dim) -> Dim:
        return self + (-DimExpr.of(other) if isinstance(other, DimExpr) else -other)

    def __rsub__(self, other: Dim) -> Dim:
        return -self + other

    def __mul__(self, other: Dim) -> Dim:
        return DimExpr._collect(
            (tuple(sorted(a + b)), f * g) for a, f in self.terms for b, g in DimExpr.of(other).terms
        )

    __rmul__ = __mul__

    def _exact_quotient(self, other: Dim) -> Dim | None:
        """The exact polynomial quotient, if the divisor is one term that divides every term (or equals self).

        Otherwise None.
        """
        divisor = DimExpr.of(other)
        if len(divisor.terms) != 1:
            return 1 if divisor == self else None
        atoms, factor = divisor.terms[0]
        found = []
        for a, f in self.terms:
            rest = list(a)
            for atom in atoms:
                if atom not in rest:
                    return None
                rest.remove(atom)
            if f % factor:
                return None
            found.append((tuple(rest), f // factor))
        return DimExpr._collect(found)

    def __floordiv__(self, other: Dim) -> Dim:
        exact = self._exact_quotient(other)
        if exact is not None:
            return exact
        if not isinstance(other, int) or other < 1:
            return DimExpr((((Atom("//", args=(self, other)),), 1),))
        whole, rest = self._divided(other)
        if not isinstance(rest, DimExpr):
            return whole + rest // other
        inner = rest._quotient_within()
        if inner is None:
            return whole + DimExpr((((Atom("//", args=(rest, other)),), 1),))
        below, least = inner.args  # (r + a // b) // c == (r * b + a) // (b * c)
        shifted = (rest - DimExpr((((inner,), 1),))) * least + below
        return whole + shifted // (least * other)

    def _divided(self, number: int) -> tuple[Dim, Dim]:
        """Returns (q, r) with self = q * number + r and the coefficients of r in 0..number - 1."""
        whole = DimExpr._collect((a, f // number) for a, f in self.terms)
        return whole, DimExpr._collect((a, f % number) for a, f in self.terms)

    def _quotient_within(self) -> Atom | None:
        """The only quotient by a positive int among the terms, if its coefficient is 1; otherwise None."""
        found = [
            (atoms[0], factor) for atoms, factor in self.terms
            if len(atoms) == 1 and atoms[0].op == "//" and isinstance(atoms[0].args[1], int) and atoms[0].args[1] > 0
        ]  # fmt: skip
        return found[0][0] if len(found) == 1 and found[0][1] == 1 else None

    def __rfloordiv__(self, other: int) -> Dim:
        return DimExpr((((Atom("//", args=(other, self)),), 1),)) if other else 0

    def __mod__(self, other: Dim) -> Dim:
        return 0 if self._exact_quotient(other) is not None else self._remainder(other)

    def __rmod__(self, other: int) -> Dim:
        return DimExpr.of(other)._remainder(self) if other else 0

    def _remainder(self, other: Dim) -> Dim:
        rest = self._divided(other)[1] if isinstance(other, int) and other > 0 else self
        return DimExpr((((Atom("%", args=(rest, other)),), 1),)) if isinstance(rest, DimExpr) else rest

    def __str__(self) -> str:
        def term(atoms: tuple[Atom, ...], factor: int) -> str:
            names = [str(a) for a in atoms]
            return "*".join(names if factor == 1 and names else [str(factor), *names])

        return " + ".join(term(a, f) for a, f in self.terms) or "0"

    __repr__ = __str__

    def __bool__(self) -> bool:
        low, high = bounds(self)
        if low <= 0 <= high:
            raise ShapeError(f"whether the dimension {self} is 0 is not the same for all sizes",
                             where=f"{self} is from {low:g} to {high:g}", hint="bind it, or do not decide by it")  # fmt: skip
        return True


def _spelled(value: Dim, *, products: bool = False) -> str:
    """A dimension as an operand of `//` or `%`, in parentheses if needed."""
    single = not isinstance(value, DimExpr) or (
        len(value.terms) == 1 and (products or (value.terms[0][1] == 1 and len(value.terms[0][0]) == 1))
    )
    return str(value) if single else f"({value})"


Dim: TypeAlias = int | DimExpr
Shape: TypeAlias = tuple[Dim, ...]


def dim(name: str, *, min: int = 1, max: int = 32768) -> DimExpr:
    """A symbolic dimension for sizes that are not fixed yet.

    `min` and `max` bound the sizes that it may be bound to. Raises ShapeError unless `name` is an identifier and 0 <=
    min <= max.
    """
    if not isinstance(name, str) or not name.isidentifier():
        raise ShapeError(f"{name!r} is not a name for a dimension", hint="use a Python identifier")
    if not (isinstance(min, Integral) and isinstance(max, Integral) and 0 <= min <= max):
        raise ShapeError(f"no size is at least {min} and at most {max}", where=f"dim({name!r})")
    return DimExpr((((Atom("size", name, min=min, max=max),), 1),))


def symbols(value: Dim) -> dict[str, Atom]:
    """The named sizes in a dimension, by name."""
    found: dict[str, Atom] = {}
    if isinstance(value, DimExpr):
        for atoms, _ in value.terms:
            for atom in atoms:
                if atom.op == "size":
                    found[atom.name] = atom
                for arg in atom.args:
                    found |= symbols(arg)
    return found


def bind(value: Dim, sizes: Mapping[str, Dim]) -> Dim:
    """The dimension with numbers or expressions in place of named sizes; an int if all sizes were given as ints.

    Raises ShapeError for a size out of range, or at which a divisor is 0.
    """
    if not isinstance(value, DimExpr):
        return value
    total: Dim = 0
    for atoms, factor in value.terms:
        term: Dim = factor
        for atom in atoms:
            term = term * _bind_atom(atom, sizes)
        total = total + term
    return total


def _bind_atom(atom: Atom, sizes: Mapping[str, Dim]) -> Dim:
    if atom.op == "size":
        if atom.name not in sizes:
            return DimExpr((((atom,), 1),))
        size = sizes[atom.name]
        if isinstance(size, int) and not atom.min <= size <= atom.max:
            raise ShapeError(f"dimension {atom.name}={size} is outside {atom.min}..{atom.max}")
        return size
    left, right = (bind(a, sizes) for a in atom.args)
    if right == 0:
        raise ShapeError(f"the size {atom} divides by {atom.args[1]}, which is 0 at these sizes")
    if atom.op == "//":
        return left // right
    return left % right


_OPERATORS: dict[type, Callable[[Dim, Dim], Dim]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.FloorDiv: lambda a, b: a // b,
    ast.Mod: lambda a, b: a % b,
}


LONGEST_TEXT, LARGEST_SUM = 4096, 256  # limits of `parse`: characters of the text, terms of the dimension


def parse(text: str, known: Mapping[str, Dim]) -> Dim:
    """The dimension that a text over named sizes spells.

    `known`: sizes by name. Raises ShapeError for anything else; the text is not executed.
    """

    def read(node: ast.expr) -> Dim:
        found = value_of(node)
        if isinstance(found, DimExpr) and len(found.terms) > LARGEST_SUM:
            raise ShapeError(f"the dimension has more than {LARGEST_SUM} terms")
        return found

    def value_of(node: ast.expr) -> Dim:
        match node:
            case ast.Constant(value=int(value)):
                return value
            case ast.Name(id=name) if name in known:
                return known[name]
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -read(operand)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                return _OPERATORS[type(op)](read(left), read(right))
        raise ShapeError(f"{text!r} is no dimension", hint=f"known sizes: {sorted(known)}")

    try:
        if len(text) > LONGEST_TEXT:
            raise SyntaxError
        return read(ast.parse(text, mode="eval").body)
    except (
        SyntaxError,
        RecursionError,
        MemoryError,
        ValueError,
        ZeroDivisionError,
    ):  # MemoryError: nested too deeply to parse
        raise ShapeError(f"{text[:80]!r} is no dimension") from None


def concrete(shape: Shape) -> tuple[int, ...]:
    """The shape as ints. Raises ShapeError if a dimension is symbolic."""
    if {*map(type, shape)} <= {int}:
        return shape  # type: ignore[return-value]
    if any(isinstance(d, DimExpr) for d in shape):
        free = sorted({n for d in shape for n in symbols(d)})
        raise ShapeError(f"shape {shape} has free dimensions {', '.join(free)}", hint="bind them: dims={...}")
    return tuple(int(d) for d in shape)  # type: ignore[arg-type]


def bounds(value: Dim) -> tuple[float, float]:
    """(lower, upper) bound of the dimension over all sizes that the ranges of its named sizes allow."""
    if not isinstance(value, DimExpr):
        return float(value), float(value)
    low = high = 0.0
    for atoms, factor in value.terms:
        a, b = float(factor), float(factor)
        for atom in atoms:
            ends = [p * q for p in (a, b) for q in _atom_bounds(atom)]
            a, b = min(ends), max(ends)
        low, high = low + a, high + b
    return low, high


def _atom_bounds(atom: Atom) -> tuple[float, float]:
    if atom.op == "size":
        return float(atom.min), float(atom.max)
    (low, high), (small, large) = bounds(atom.args[0]), bounds(atom.args[1])
    if small <= 0 or low < 0:
        return float("-inf"), float("inf")
    return (low // large, high // small) if atom.op == "//" else (0.0, min(high, large - 1))


def volume(shape: Shape) -> Dim:
    """Number of elements of a shape."""
    return prod(shape, start=1)
