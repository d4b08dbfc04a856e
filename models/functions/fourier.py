"""Functions that build the graph of `np.fft` on traced arrays: products with matrices of a discrete Fourier transform.

A long transform is done in two steps of about sqrt(n) elements each: J. Cooley and J. Tukey, "An algorithm for the
machine calculation of complex Fourier series", Mathematics of Computation 19, 1965.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isqrt, sqrt
from typing import Any

import numpy as np

from ...egraph.types.axes import axis_of
from ...errors import TraceError
from ..common.complex_parts import LONGEST_DFT, Parts, bilinear, unit_roots
from .complex_array import ComplexArray, is_complex, kind_of_parts, parts_of
from .numpy_builders import Build, ints

#: Most elements of one step of a transform, and of a transform that is done in one step if it can be in two.
LONGEST, DIRECT = LONGEST_DFT, 128


def _each(x: Parts, move: Callable[[Any], Any]) -> Parts:
    """Both parts, moved."""
    re, im = x
    return move(re), None if im is None else move(im)


def _last_axis(x: Parts, sign: int) -> Parts:
    """Transform along the last axis, without a factor."""
    size, kind = int(x[0].shape[-1]), x[0].dtype.name

    def times(v: Parts, product: Any, rows: int, columns: int, period: int) -> Parts:
        cosines, sines = unit_roots(rows, columns, period, sign)
        return bilinear(product, v, (cosines.astype(kind), sines.astype(kind)))

    inner = next((p for p in range(isqrt(size), 7, -1) if size % p == 0), 0) if size > DIRECT else 0
    if max(inner and size // inner, 0 if inner else size) > LONGEST:
        raise TraceError(f"a Fourier transform over {size} elements cannot be traced",
                         hint=f"at most {LONGEST} elements, or a product of two numbers up to it")  # fmt: skip
    if not inner:
        return times(x, np.matmul, size, size, size)
    p, q = inner, size // inner
    lead = x[0].shape[:-1]
    turn: Callable[[Any], Any] = lambda v: np.swapaxes(v, -1, -2)
    # element q j + i: over j, times exp(2 pi sqrt(-1) i k / size), over i
    rows = _each(x, lambda v: turn(np.reshape(v, (*lead, p, q))))
    found = times(rows, np.matmul, p, p, p)  # [..., i, k]
    found = times(found, np.multiply, q, p, size)
    found = times(_each(found, turn), np.matmul, q, q, q)  # [..., k, l] is element k + p l
    return _each(found, lambda v: np.reshape(turn(v), (*lead, size)))


def _sized(x: Any, size: int, axis: int) -> Any:
    """An array cut, or continued by zeros, to a size of an axis."""
    have = x.shape[axis]
    if size <= have:
        return x[(*[slice(None)] * axis, slice(0, size))]
    return np.pad(x, [(0, size - have if i == axis else 0) for i in range(x.ndim)])


def _factor(norm: Any, size: int, forward: bool) -> float:
    if norm not in (None, "backward", "ortho", "forward"):
        raise TraceError(f"a Fourier transform with norm={norm!r} cannot be traced", hint="backward, ortho or forward")
    if norm == "ortho":
        return 1 / sqrt(size)
    return 1 / size if (norm == "forward") == forward else 1.0


def _size(n: Any, default: int) -> int:
    size = default if n is None else int(n)
    if size < 1:
        raise TraceError(f"a Fourier transform over {size} elements cannot be traced", hint="at least one element")
    return size


def _axis(a: Any, axis: int) -> int:
    return axis_of(axis, np.ndim(a))


def _parts(a: Any) -> Parts:
    kind = "float32" if getattr(a, "dtype", None) == np.float16 else kind_of_parts(a)
    if not is_complex(a) and getattr(a, "dtype", np.dtype(int)).kind in "iub":
        kind = "float64"
    re, im = parts_of(a, kind)
    return re, im if is_complex(a) else None


def _along(a: Any, n: Any, axis: int, norm: Any, forward: bool) -> ComplexArray:
    axis = _axis(a, axis)
    size = _size(n, int(np.shape(a)[axis]))
    x = _each(_parts(a), lambda v: np.moveaxis(_sized(v, size, axis), axis, -1))
    scale = _factor(norm, size, forward)
    scaled: Callable[[Any], Any] = lambda v: v * v.dtype.type(scale) if scale != 1 else v
    return ComplexArray(*_each(_last_axis(x, -1 if forward else 1), lambda v: np.moveaxis(scaled(v), -1, axis)))


def _fft(a: Any, n: Any = None, axis: int = -1, norm: Any = None) -> Any:
    return _along(a, n, axis, norm, True)


def _ifft(a: Any, n: Any = None, axis: int = -1, norm: Any = None) -> Any:
    return _along(a, n, axis, norm, False)


def _rfft(a: Any, n: Any = None, axis: int = -1, norm: Any = None) -> Any:
    if is_complex(a):
        raise TraceError("a Fourier transform of real numbers cannot be taken of complex ones", hint="x.real")
    found, axis = _along(a, n, axis, norm, True), _axis(a, axis)
    return found[(*[slice(None)] * axis, slice(0, found.shape[axis] // 2 + 1))]


def _irfft(a: Any, n: Any = None, axis: int = -1, norm: Any = None) -> Any:
    axis = _axis(a, axis)
    size = _size(n, 2 * (int(np.shape(a)[axis]) - 1))
    re, im = _parts(a)
    half = [_sized(v, size // 2 + 1, axis) for v in (re, re * 0 if im is None else im)]
    lead = (slice(None),) * axis
    later = [v[(*lead, slice(1, (size + 1) // 2))][(*lead, slice(None, None, -1))] for v in half]
    whole = ComplexArray(*(np.concatenate([v, s * w], axis) for v, w, s in zip(half, later, (1, -1))))
    found = _along(whole, None, axis, norm, False).real
    return found.astype(np.float16) if a.dtype == np.float16 else found


_OTHER = {None: "forward", "backward": "forward", "forward": "backward", "ortho": "ortho"}


def _hfft(a: Any, n: Any = None, axis: int = -1, norm: Any = None) -> Any:
    size = _size(n, 2 * (int(np.shape(a)[_axis(a, axis)]) - 1))
    return _irfft(np.conjugate(a), size, axis, _OTHER[norm])


def _ihfft(a: Any, n: Any = None, axis: int = -1, norm: Any = None) -> Any:
    return np.conjugate(_rfft(a, n, axis, _OTHER[norm]))


def _axes(a: Any, s: Any, axes: Any) -> tuple[list[Any], list[int]]:
    """(sizes, axes) of a transform over several axes."""
    if axes is None:
        axes = range(-len(s), 0) if s is not None else range(np.ndim(a))
    found = [_axis(a, v) for v in ints(axes)]
    if s is None:
        return [None] * len(found), found
    return [np.shape(a)[axis] if size == -1 else size for size, axis in zip(s, found, strict=True)], found


def _over(forward: bool, default: Any = None) -> Build:
    def run(a: Any, s: Any = None, axes: Sequence[int] | None = default, norm: Any = None) -> Any:
        for size, axis in reversed(list(zip(*_axes(a, s, axes), strict=True))):
            a = _along(a, size, axis, norm, forward)
        return a

    return run


def _rfft_over(default: Any = None) -> Build:
    def run(a: Any, s: Any = None, axes: Sequence[int] | None = default, norm: Any = None) -> Any:
        sizes, places = _axes(a, s, axes)
        a = _rfft(a, sizes[-1], places[-1], norm)
        for size, axis in reversed(list(zip(sizes[:-1], places[:-1]))):
            a = _along(a, size, axis, norm, True)
        return a

    return run


def _irfft_over(default: Any = None) -> Build:
    def run(a: Any, s: Any = None, axes: Sequence[int] | None = default, norm: Any = None) -> Any:
        sizes, places = _axes(a, s, axes)
        for size, axis in zip(sizes[:-1], places[:-1]):
            a = _along(a, size, axis, norm, False)
        return _irfft(a, sizes[-1], places[-1], norm)

    return run


#: Builders over traced arrays and complex ones by qualified name.
FOURIER: dict[str, Build] = {
    "fft.fft": _fft, "fft.ifft": _ifft, "fft.rfft": _rfft, "fft.irfft": _irfft, "fft.hfft": _hfft, "fft.ihfft": _ihfft,
    "fft.fftn": _over(True), "fft.ifftn": _over(False), "fft.fft2": _over(True, (-2, -1)), "fft.ifft2": _over(False, (-2, -1)),
    "fft.rfftn": _rfft_over(), "fft.rfft2": _rfft_over((-2, -1)), "fft.irfftn": _irfft_over(), "fft.irfft2": _irfft_over((-2, -1)),
}  # fmt: skip

__all__ = ["FOURIER"]
