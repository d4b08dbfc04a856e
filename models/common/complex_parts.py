"""Complex arithmetic on (real part, imaginary part), shared by the tracer of NumPy functions and the PyTorch importer.

A part is whatever the caller computes with: traced arrays or nodes of a graph.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
#: Longest axis of a transform that is one product with a constant matrix.
LONGEST_DFT = 2048
Parts = tuple[Any, Any]  # (real part, imaginary part); an imaginary part of None is zero


def bilinear(apply: Callable[[Any, Any], Any], x: Parts, y: Parts) -> Parts:
    """Return the parts of `apply(x, y)`, where `apply` is a bilinear function of real operands (`*`, `@`).

    With a real operand (an imaginary part of None) it takes two real products, not four. One of x and y is complex.
    """
    (a, b), (c, d) = x, y
    if b is None:
        return apply(a, c), apply(a, d)
    if d is None:
        return apply(a, c), apply(b, c)
    return apply(a, c) - apply(b, d), apply(a, d) + apply(b, c)


def unit_roots(rows: int, columns: int, size: int, sign: int) -> tuple[Array, Array]:
    """Return (cosines, sines), float64 [rows, columns] each, of the angles 2 pi j k / size in row j and column k.

    These are the parts of exp(sign * 2 pi i j k / size): with rows = columns = size, the matrix of a discrete Fourier
    transform (`sign` -1) or of its inverse without the factor 1 / size (`sign` 1).
    """
    angles = np.outer(np.arange(rows), np.arange(columns)) % size * (2 * np.pi / size)
    return np.cos(angles), sign * np.sin(angles)


def real_inverse_roots(rows: int, size: int) -> tuple[Array, Array]:
    """Return float64 matrices (C, S), [rows, size] each, of the inverse transform of a real signal of `size` elements
    whose first `rows` (at most size // 2 + 1) elements are given as (re, im): re @ C - im @ S, without the factor 1 /
    size. The other elements are the complex conjugates of these, so most of these count twice."""
    cosines, sines = unit_roots(rows, size, size, 1)
    places = np.arange(rows)[:, None]
    twice = np.where((places == 0) | (2 * places == size), 1.0, 2.0)
    return cosines * twice, sines * twice


__all__ = ["LONGEST_DFT", "Array", "Parts", "bilinear", "real_inverse_roots", "unit_roots"]
