"""Comparison of a result with its float64 reference, per element and per slice, for NumPy arrays and Torch tensors.

A norm of a whole output hides a wrong part with small values. So each element has its own limit: an error relative to
the element's value, plus the unfused baseline's error in a slice that contains the element (the slice with the smallest
one). A slice is all elements with one index along an axis (a row, a column, a channel); a single long axis is cut into
stretches. Each slice also has a limit for its error norm, which detects many small errors.

The limits are estimates. If an element exceeds its limit, the effect of rounding on it is estimated
(`verification/rounding_noise.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...egraph.ir import dtypes

PLACE = 8.0  # allowed relative error of an element, as a multiple of that of the whole output
BESIDE = 4.0  # allowed error as a multiple of the whole output's relative error times the root mean square of the slice
OWN = 12.0  # multiple of the baseline's root mean square error in a slice that an element may be off by
SLICE = 3.0  # multiple of the allowed error of the whole, and of the baseline's error, for a slice's norm
LEAST = 32  # minimum elements of a slice: fewer give no useful mean
STRETCH = 256  # elements of a stretch of a long axis
PIECE, PIECE_THERE = 1 << 18, 1 << 22  # elements compared at a time: arrays, tensors

#: Relative error of a single kernel from which limits of elements and slices follow, by the narrowest float dtype that
#: the kernel reads or writes. A kernel beyond them is wrong unless rounding explains the error.
KERNEL = {"float64": 3e-11, "float32": 2e-5, "float16": 1e-3, "bfloat16": 5e-3}

HUGE = 2.0**-600  # scale of values whose squares overflow float64

#: Unit roundoff, and the largest and smallest numbers with full precision.
UNITS = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
LARGEST = {
    "float64": 1.7976931348623157e308,
    "float32": 3.4028234663852886e38,
    "float16": 65504.0,
    "bfloat16": 3.3895313892515355e38,
}
SMALLEST = {"float64": 2.2250738585072014e-308, "float32": 2.0**-126, "float16": 2.0**-22, "bfloat16": 2.0**-126}


@dataclass(frozen=True)
class Worst:
    """Element or slice with the largest ratio of error to limit."""

    ratio: float = 0.0  # error / limit
    error: float = 0.0  # absolute error; the norm for a slice
    limit: float = 0.0
    size: float = 0.0  # magnitude of the reference; the norm for a slice
    where: str = ""  # text that names the element or slice
    exempt: int = 0  # elements not compared because rounding decides their value

    @property
    def relative(self) -> float:
        """The error relative to the reference."""
        return self.error / self.size if self.size else math.inf if self.error else 0.0

    @property
    def said(self) -> str:
        """Text with location and size of the error."""
        return f"{self.where}: off by {self.error:.3g}, where {self.limit:.3g} is allowed beside {self.size:.3g}"


def module_of(x: Any) -> Any:
    """The array module of a value: NumPy or Torch."""
    if type(x).__module__.partition(".")[0] == "torch":
        import torch

        return torch
    return np


def wide(x: Any) -> Any:
    """Value (array, NumPy scalar or tensor) in float64."""
    return np.asarray(x).astype(np.float64, copy=False) if module_of(x) is np else x.double()


def equal_bits(x: Any, y: Any, floating: bool) -> Any:
    """Mask of the elements in which arrays, or tensors, have equal bits; all NaN are equal. `floating`: whether they are floats."""
    same = x == y
    if not floating:
        return same
    xp = module_of(y)
    return (same & (xp.signbit(x) == xp.signbit(y))) | ((x != x) & (y != y))


def worst(y: Any, exact: Any, own: Any | None, dtype: str, allowed: float, unstable: Any | None = None) -> Worst:
    """Worst element or slice of a result; see `MeasuredErrors.worst`."""
    return MeasuredErrors(y, exact, own, unstable).worst(dtype, allowed)


class MeasuredErrors:
    """Errors of a result `y` against its float64 reference of equal shape, overall and per slice.

    `own`: result of the unfused baseline in its own dtypes, or None. `unstable`: how far rounding moves each
    element; elements whose error is smaller than that count as exact. Elements where `y` or the reference is not
    finite are left out of all norms.
    """

    def __init__(self, y: Any, exact: Any, own: Any | None, unstable: Any | None = None) -> None:
        self.xp, self.shape = module_of(exact), tuple(exact.shape)
        self.flat = flat = _Flat(self.shape)
        self.parts = [x if x is None else flat.of(x) for x in (y, exact, own, unstable)]
        self.scale = 1.0  # power of two that all values are multiplied with
        self._measure()
        if flat.total and not math.isfinite(float(self.sums.by_column[1].sum()) + float(self.sums.by_column[0].sum())):
            self.scale = HUGE  # squares overflow float64
            self._measure()

    def _measure(self) -> None:
        """Sum the squares of errors and values."""
        self.sums = _Sums(self.flat, self.xp)
        self.peaks: list[tuple[slice, Any]] = []  # (rows, largest error in them)
        self.known = 0.0  # sum of squares of the reference where the baseline is finite
        self.finite = True  # whether NaN and infinities match another run
        if self.flat.total:
            with np.errstate(all="ignore"):
                for rows in self._rows():
                    self._add(rows)

    def _rows(self) -> Iterator[slice]:
        step = max(1, (PIECE if self.xp is np else PIECE_THERE) // max(self.flat.columns, 1))
        return (slice(start, start + step) for start in range(0, self.flat.rows, step))

    def _piece(self, rows: slice) -> list[Any]:
        """[result, reference, baseline, rounding movement] of the rows `rows`, in float64 and scaled."""
        found = [None if x is None else wide(x[rows]) for x in self.parts]
        return found if self.scale == 1.0 else [None if x is None else x * self.scale for x in found]

    def _add(self, rows: slice) -> None:
        xp = self.xp
        v, r, o, u = self._piece(rows)
        gap, lost = abs(v - r), None if o is None else o - r
        total = gap.sum() if lost is None else gap.sum() + lost.sum()
        if not bool(xp.isfinite(total)):
            gap, r, lost, known = self._placed(v, r, o)
            self.known += float((known * known).sum())
        else:
            self.known += float((r * r).sum()) if xp is not np else float(np.vdot(r, r))
        if u is not None:
            gap = xp.where(gap <= u, xp.zeros_like(gap), gap)
        self.peaks.append((rows, gap.max()))
        self.sums.add(gap, r, lost)

    def _placed(self, v: Any, r: Any, o: Any | None) -> tuple[Any, Any, Any, Any]:
        """(error, reference, baseline error, reference where the baseline is finite) of a result `v`, reference `r` and
        baseline `o`, with 0 where values are not finite. Records misplaced NaN and infinities."""
        xp, none = self.xp, self.xp.zeros_like(r)
        dtype = "float64" if self.parts[2] is None else dtypes.name_of(self.parts[2].dtype)
        if o is not None:
            raw = [x / self.scale for x in (v, r, o)] if self.scale != 1.0 else [v, r, o]
            self.finite = self.finite and not bool(misplaced(xp, raw[0], raw[1], raw[2], dtype).any())
        there = xp.isfinite(v) & xp.isfinite(r)
        fine = there if o is None else xp.isfinite(o) & xp.isfinite(r)
        lost = None if o is None else xp.where(fine, o - r, none)
        return xp.where(there, abs(v - r), none), xp.where(there, r, none), lost, xp.where(fine, r, none)

    @property
    def errors(self) -> tuple[float, float]:
        """Relative Frobenius errors (of the result, of the baseline). Errors of subnormal magnitude count as zero."""
        if not self.flat.total:
            return 0.0, 0.0
        gap, size, lost = (math.sqrt(float(x.sum())) if x is not None else 0.0 for x in self.sums.by_column[:3])
        dtype = "float64" if self.parts[2] is None else dtypes.name_of(self.parts[2].dtype)
        least = SMALLEST[dtype] * math.sqrt(self.flat.total)
        return share(gap, size, least), share(lost, math.sqrt(self.known))

    def worst(self, dtype: str, allowed: float) -> Worst:
        """Element or slice nearest to its limit, or farthest beyond; `allowed`: relative error of the whole in `dtype`."""
        if not self.flat.total:
            return Worst()
        xp, flat = self.xp, self.flat
        with np.errstate(all="ignore"):
            limits = self.sums.limits(allowed)
            found = self.sums.slices(dtype, allowed)
            exempt = 0
            peaks = [p.item() for _, p in self.peaks] if xp is np else xp.stack([p for _, p in self.peaks]).tolist()
            for (rows, _), peak in zip(self.peaks, peaks):
                if peak <= limits.least(rows) + SMALLEST[dtype] and self.parts[3] is None:
                    continue  # all elements are within their limits
                v, r, _, u = self._piece(rows)
                gap, size, *_ = self._placed(v, r, None)
                size = abs(size)
                limit = PLACE * allowed * size + limits.of(rows) + SMALLEST[dtype]
                if u is not None:
                    free = (gap > limit) & (gap <= u)
                    exempt += int(free.sum())
                    gap = xp.where(free, xp.zeros_like(gap), gap)
                at = int((gap / limit).reshape(-1).argmax())
                error, most, beside = (float(x.reshape(-1)[at]) for x in (gap, limit, size))
                if error / most > found.ratio:
                    place = np.unravel_index(rows.start * flat.columns + at, self.shape)
                    found = Worst(error / most, error, most, beside, f"at [{', '.join(str(int(i)) for i in place)}]")
            sizes = {k: getattr(found, k) / self.scale for k in ("error", "limit", "size")}
            return replace(found, exempt=exempt, **sizes)


def share(gap: float, scale: float, least: float = 0.0) -> float:
    """Ratio gap / scale; 0 if the gap is at most `least`; the gap itself if the scale is 0 (a reference of zeros only)."""
    if gap <= least:
        return 0.0
    return gap / scale if scale > 0 else gap


class _Flat:
    """A shape viewed as a matrix: leading axes merged to rows and trailing axes to columns, as nearly square as
    possible."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        sizes = [math.prod(shape[:k]) for k in range(len(shape) + 1)]
        total = sizes[-1]
        if not total:
            self.total, self.rows, self.columns, self.stretched = 0, 0, 0, False
            self.leading: tuple[int, ...] = ()
            self.trailing: tuple[int, ...] = ()
            return
        split = min(range(len(shape) + 1), key=lambda k: abs(math.log(sizes[k] / math.sqrt(total))))
        self.total, self.leading, self.trailing = total, shape[:split], shape[split:]
        self.rows, self.columns = sizes[split], total // sizes[split]
        self.stretched = False
        if min(self.rows, self.columns) == 1 and total >= 4 * LEAST:  # a single long axis
            self.stretched = True
            width = next((w for w in range(STRETCH, LEAST - 1, -1) if total % w == 0), 0)
            self.columns = width or total
            self.rows = total // self.columns
            self.leading, self.trailing = (self.rows,), (self.columns,)

    def of(self, x: Any) -> Any:
        """An array of the shape as a matrix."""
        return x.reshape(self.rows, self.columns) if self.total else x

    def axes(self) -> Iterator[tuple[bool, int, int]]:
        """Axes with large enough slices: (whether the axis belongs to the rows, axis, elements per slice)."""
        for first, sizes in ((True, self.leading), (False, self.trailing)):
            if self.stretched and not first:
                continue
            for axis, size in enumerate(tuple(sizes)):
                if size > 1 and self.total // size >= LEAST:
                    yield first, axis, self.total // size

    def name(self, first: bool, axis: int, index: int) -> str:
        """Description of a slice, for messages."""
        if self.stretched:
            return f"in places {index * self.columns} to {(index + 1) * self.columns - 1}"
        return f"at index {index} of axis {axis if first else axis + len(self.leading)}"


class _Sums:
    """Sums per row and per column of a matrix: squares of the error, of the reference and of the baseline's error, and
    the number of elements where the baseline has an error (copied elements have none)."""

    def __init__(self, flat: _Flat, xp: Any) -> None:
        self.flat, self.xp = flat, xp
        self.by_row: list[list[Any]] = [[], [], [], []]
        self.by_column: list[Any] = [None, None, None, None]

    def add(self, gap: Any, reference: Any, lost: Any | None) -> None:
        """Add the errors, reference values and baseline errors (None: zeros) of further rows."""
        inexact = None if lost is None else (lost != 0) * self.xp.ones_like(lost)
        for k, x in enumerate((gap, reference, lost, inexact)):
            if x is None:
                row, column = self.xp.zeros_like(gap[:, 0]), self.xp.zeros_like(gap[0])
            elif self.xp is np:
                row, column = np.einsum("ij,ij->i", x, x), np.einsum("ij,ij->j", x, x)
            else:
                square = x * x
                row, column = square.sum(1), square.sum(0)
            self.by_row[k].append(row)
            self.by_column[k] = column if self.by_column[k] is None else self.by_column[k] + column

    def _along(self, k: int, first: bool, axis: int) -> Any:
        """Sums of quantity `k` per index of an axis."""
        flat = self.flat
        line, sizes = (self._rows(k), flat.leading) if first else (self.by_column[k], flat.trailing)
        found = line.reshape(sizes)
        for other in reversed(range(len(sizes))):
            found = found if other == axis else found.sum(other)
        return found

    def _rows(self, k: int) -> Any:
        if len(self.by_row[k]) > 1:
            join = self.xp.concatenate if self.xp is np else self.xp.cat
            self.by_row[k] = [join(self.by_row[k])]
        return self.by_row[k][0]

    def slices(self, dtype: str, allowed: float) -> Worst:
        """The slice with the worst norm."""
        found = Worst()
        for first, axis, count in self.flat.axes():
            gap, size, lost = (self.xp.sqrt(self._along(k, first, axis)) for k in range(3))
            lost = self._lost(lost, self._along(3, first, axis))
            limit = SLICE * (allowed * size + lost) + SMALLEST[dtype] * math.sqrt(count)
            ratio = gap / limit
            at = int(ratio.argmax())
            if float(ratio[at]) > found.ratio:
                found = Worst(
                    float(ratio[at]), float(gap[at]), float(limit[at]), float(size[at]), self.flat.name(first, axis, at)
                )
        return found

    def _lost(self, lost: Any, inexact: Any) -> Any:
        """Norms of the baseline's error per slice.

        In slices with few inexact elements the norm may be near zero by chance; there it is at least OWN times
        the norm of as many errors of the output's mean magnitude.
        """
        total = float(self.by_column[3].sum())
        mean = math.sqrt(float(self.by_column[2].sum()) / max(total, 1.0))
        few = OWN / SLICE * mean * self.xp.sqrt(inexact)
        return self.xp.where(inexact < LEAST, self.xp.maximum(lost, few), lost)

    def limits(self, allowed: float) -> _Limits:
        """Absolute error limits per row and per column. The limit relative to an element's value comes on top."""
        xp, flat = self.xp, self.flat
        total = [x.sum().reshape(1) for x in self.by_column[1:]]
        whole = self._limit(total, flat.total, allowed, least=1)
        rows, columns = whole + xp.zeros_like(self._rows(1)), whole + xp.zeros_like(self.by_column[1])
        for first, axis, count in flat.axes():
            line = self._limit([self._along(k, first, axis) for k in (1, 2, 3)], count, allowed)
            sizes = flat.leading if first else flat.trailing
            shaped = line.reshape([-1 if i == axis else 1 for i in range(len(sizes))])
            full = (shaped + xp.zeros_like((rows if first else columns).reshape(sizes))).reshape(-1)
            if first:
                rows = xp.minimum(rows, full)
            else:
                columns = xp.minimum(columns, full)
        return _Limits(xp, rows, columns)

    def _limit(self, sums: list[Any], count: int, allowed: float, least: int = LEAST) -> Any:
        """Error limits of elements in slices of `count` elements.

        The baseline's mean error is taken over elements with an error, because an output such as a cache has
        many copied elements besides one computed row. Infinite for slices with 1 to `least` - 1 such elements,
        too few for a useful mean.
        """
        xp, inexact = self.xp, sums[2]
        size, lost = xp.sqrt(sums[0] / count), xp.sqrt(sums[1] / xp.clip(inexact, 1, None))
        limit = BESIDE * allowed * size + OWN * lost
        return xp.where((inexact > 0) & (inexact < least), xp.full_like(limit, math.inf), limit)


@dataclass(frozen=True)
class _Limits:
    """Absolute error limit per row and per column; the smaller one applies to an element."""

    xp: Any
    rows: Any
    columns: Any

    def of(self, rows: slice) -> Any:
        """The limits of all elements in some rows."""
        return self.xp.minimum(self.rows[rows][:, None], self.columns[None, :])

    def least(self, rows: slice) -> float:
        """The smallest limit in some rows."""
        return min(float(self.rows[rows].min()), float(self.columns.min()))


# ---------------------------------------------------------------- integers, bools, NaN and infinities
def differing(y: Any, own: Any, exact: Any | None = None, unstable: Any | None = None) -> Worst:
    """Result of comparing an integer or bool output `y`: elements that match neither the baseline `own` nor the float64
    run `exact`. In the result, `ratio` is their share and `where` names the first one. `unstable`: elements whose value
    rounding decides, for which any value is accepted."""
    xp = module_of(own)
    if not math.prod(own.shape):
        return Worst()
    with np.errstate(all="ignore"):
        off = y != own
        if exact is not None and bool(off.any()):
            off = off & (y != exact)
        exempt = 0
        if unstable is not None:
            exempt = int((off & unstable).sum())
            off = off & ~unstable
        count = int(off.sum())
        if not count:
            return Worst(exempt=exempt)
        first = int((off * 1 if xp is np else off.int()).reshape(-1).argmax())
        got, want = (x.reshape(-1)[first].item() for x in (y, own))
    place = [int(i) for i in np.unravel_index(first, tuple(own.shape))]
    where = f"{count} of {math.prod(own.shape)} places, the first at {place}: {got} for {want}"
    return Worst(count / math.prod(own.shape), count, 0.0, 0.0, where, exempt)


def misplaced(xp: Any, v: Any, r: Any, o: Any, dtype: str = "float64") -> Any:
    """Mask of the elements of a result `v` whose class (NaN, +inf, -inf, finite) is neither that of the reference `r`
    nor that of the baseline `o`, all in float64. `xp`: NumPy or Torch. Values within rounding of the largest number of
    `dtype` may be infinite or finite."""
    edge = LARGEST[dtype] * (1 - 64 * UNITS[dtype])
    near = (xp.abs(r) >= edge) & (xp.abs(v) >= edge) & ((v > 0) == (r > 0))
    return ~(_alike(xp, v, r) | _alike(xp, v, o) | near)


def _alike(xp: Any, a: Any, b: Any) -> Any:
    """Mask of the elements in which both arrays are NaN, the same infinity, or finite."""
    return (xp.isfinite(a) & xp.isfinite(b)) | (xp.isinf(a) & (a == b)) | (xp.isnan(a) & xp.isnan(b))


__all__ = [
    "LARGEST",
    "SMALLEST",
    "UNITS",
    "MeasuredErrors",
    "Worst",
    "differing",
    "misplaced",
    "module_of",
    "share",
    "wide",
    "worst",
]
