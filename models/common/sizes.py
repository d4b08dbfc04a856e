"""Lowers symbolic dimensions to tensor values, for programs that compute with a free size; scales sizes."""

from __future__ import annotations

from fractions import Fraction
from math import floor

from ...egraph.builders import builders as t
from ...egraph.ir.tensor import Tensor
from ...egraph.types.dims import Atom, Dim, DimExpr


def size_tensor(size: Dim) -> Tensor:
    """Return a dimension as a rank-0 int64 tensor.

    A named size is lowered to the sum of ones along an axis of that size.
    """
    if not isinstance(size, DimExpr):
        return t.full((), int(size), "int64")
    total: Tensor | None = None
    for atoms, factor in size.terms:
        term: Tensor = t.full((), factor, "int64")
        for atom in atoms:
            term = t.mul(term, _atom_tensor(atom))
        total = term if total is None else t.add(total, term)
    return total if total is not None else t.full((), 0, "int64")


def size_vector(size: Dim, dtype: str) -> Tensor:
    """Return a dimension as a tensor [1] of a dtype."""
    return t.reshape(t.cast(size_tensor(size), dtype), (1,))


def scaled_size(size: Dim, factor: float) -> Dim | None:
    """Return `size` times `factor`, rounded down.

    A factor is a multiple of a power of two, so that the product with a free size is an expression of integers. None if
    that power is less than 2^-30, since products with the numerator might exceed int64.
    """
    if not isinstance(size, DimExpr):
        return floor(size * factor)
    part = Fraction(factor)
    return size * part.numerator // part.denominator if part.denominator <= 1 << 30 else None


def _atom_tensor(atom: Atom) -> Tensor:
    if atom.op == "size":
        return t.sum(t.ones((DimExpr((((atom,), 1),)),), "int64"))
    left, right = (size_tensor(a) for a in atom.args)
    return t.floordiv(left, right) if atom.op == "//" else t.mod(left, right)


__all__ = ["scaled_size", "size_tensor", "size_vector"]
