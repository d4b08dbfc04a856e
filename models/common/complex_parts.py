"""Complex arithmetic on (real part, imaginary part), shared by the tracer of NumPy functions and the PyTorch importer.

A part is whatever the caller computes with: traced arrays or nodes of a graph.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
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


__all__ = ["Parts", "bilinear", "unit_roots"]
