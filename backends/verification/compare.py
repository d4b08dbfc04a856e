"""Compares a result with its float64 reference, per element and per slice, for NumPy arrays and Torch tensors.

The norm of a whole output does not show errors in a part with small values. So each element has its own limit: an error
relative to the element's value, plus the unfused baseline's error in a slice that contains the element (the slice with
the smallest one). A slice is all elements with one index along an axis (a row, a column, a channel); a single long axis
is cut into stretches. Each slice also has a limit for its error norm, which detects many small errors.

The limits are estimates. If an element exceeds its limit, the effect of rounding on it is estimated
(`verification/rounding_noise.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from ...egraph.types import dtypes
from .slice_norms import SMALLEST, MatrixShape, SliceSums, WorstError, largest

PLACE = 8.0  # allowed relative error of an element, as a multiple of that of the whole output
PIECE, PIECE_THERE = 1 << 18, 1 << 22  # elements compared at a time: arrays, tensors

#: Relative error of a single kernel from which limits of elements and slices follow, by the narrowest float dtype that
#: the kernel reads or writes. A kernel beyond them is wrong unless rounding explains the error.
KERNEL = {"float64": 3e-11, "float32": 2e-5, "float16": 1e-3, "bfloat16": 5e-3}

HUGE = 2.0**-600  # scale of values whose squares overflow float64

#: Unit roundoff, and the largest number.
UNITS = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
LARGEST = {
    "float64": 1.7976931348623157e308,
    "float32": 3.4028234663852886e38,
    "float16": 65504.0,
    "bfloat16": 3.3895313892515355e38,
}


def module_of(x: Any) -> Any:
    """The array module of the value `x`: NumPy or Torch."""
    if type(x).__module__.partition(".")[0] == "torch":
        import torch

        return torch
    return np


def wide(x: Any) -> Any:
    """The value `x` (array, NumPy scalar or tensor) in float64."""
    return np.asarray(x).astype(np.float64, copy=False) if module_of(x) is np else x.double()


def equal_bits(x: Any, y: Any, floating: bool) -> Any:
    """Mask of the elements in which the arrays or tensors `x` and `y` have equal bits; all NaN are equal. `floating`:
    whether they are floats."""
    same = x == y
    if not floating:
        return same
    xp = module_of(y)
    return (same & (xp.signbit(x) == xp.signbit(y))) | ((x != x) & (y != y))


def worst(y: Any, exact: Any, own: Any | None, dtype: str, allowed: float, unstable: Any | None = None) -> WorstError:
    """Element or slice of a result `y` whose error is nearest to its limit, or farthest beyond it.

    `exact`: the float64 reference. `own`: result of the unfused baseline in its own dtypes, if known. `dtype`: that of
    the output. `allowed`: relative error allowed for the whole output. `unstable`: how far rounding moves each element;
    an error up to that does not count.
    """
    return MeasuredErrors(y, exact, own, unstable).worst(dtype, allowed)


class MeasuredErrors:
    """Errors of a result `y` against its float64 reference `exact` of equal shape, overall and per slice.

    `own`: result of the unfused baseline in its own dtypes, or None. `unstable`: how far rounding moves each element;
    the error of an element counts as 0 if it is smaller than that. Elements where `y` or the reference is not finite
    are left out of all norms.
    """

    def __init__(self, y: Any, exact: Any, own: Any | None, unstable: Any | None = None) -> None:
        self.xp, self.shape = module_of(exact), tuple(exact.shape)
        self.flat = flat = MatrixShape(self.shape)
        self.parts = [x if x is None else flat.of(x) for x in (y, exact, own, unstable)]
        self.scale = 1.0  # power of two that all values are multiplied with
        self._measure()
        if flat.total and not self._fits():
            self.scale = HUGE  # squares overflow float64
            self._measure()

    def _fits(self) -> bool:
        """Whether the sums of squares are finite."""
        gap, size, *_ = (x.sum() for x in self.sums.by_column if x is not None)
        return math.isfinite(float(gap) + float(size) if self.xp is np else float(gap + size))

    def _measure(self) -> None:
        """Sum the squares of errors and values."""
        self.sums = SliceSums(self.flat, self.xp)
        self.peaks: list[tuple[slice, Any]] = []  # (rows, largest error in them)
        self.known = 0.0  # sum of squares of the reference where the baseline is finite; 0 without a baseline
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
            self.known += float((known * known).sum()) if o is not None else 0.0
        elif o is not None:
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

    def worst(self, dtype: str, allowed: float) -> WorstError:
        """Element or slice whose error is nearest to its limit, or farthest beyond it; `allowed`: relative error of the
        whole in `dtype`."""
        if not self.flat.total:
            return WorstError()
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
                at, (_, error, most, beside) = largest(xp, *(x.reshape(-1) for x in (gap / limit, gap, limit, size)))
                if error / most > found.ratio:
                    place = np.unravel_index(rows.start * flat.columns + at, self.shape)
                    found = WorstError(
                        error / most, error, most, beside, f"at [{', '.join(str(int(i)) for i in place)}]"
                    )
            sizes = {k: getattr(found, k) / self.scale for k in ("error", "limit", "size")}
            return replace(found, exempt=exempt, **sizes)


def share(gap: float, scale: float, least: float = 0.0) -> float:
    """Ratio gap / scale; 0 if the gap is at most `least`; the gap itself if the scale is 0 (a reference of zeros
    only)."""
    if gap <= least:
        return 0.0
    return gap / scale if scale > 0 else gap


# ---------------------------------------------------------------- integers, bools, NaN and infinities
def differing(y: Any, own: Any, exact: Any | None = None, unstable: Any | None = None) -> WorstError:
    """Compare an integer or bool output `y`; returns the elements that match neither the baseline `own` nor the float64
    run `exact`: `ratio` is their share and `where` names the first one. `unstable`: elements whose value rounding
    decides, for which any value is accepted."""
    xp = module_of(own)
    if not math.prod(own.shape):
        return WorstError()
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
            return WorstError(exempt=exempt)
        first = int((off * 1 if xp is np else off.int()).reshape(-1).argmax())
        got, want = (x.reshape(-1)[first].item() for x in (y, own))
    place = [int(i) for i in np.unravel_index(first, tuple(own.shape))]
    where = f"{count} of {math.prod(own.shape)} places, the first at {place}: {got} for {want}"
    return WorstError(count / math.prod(own.shape), count, 0.0, 0.0, where, exempt)


def misplaced(xp: Any, v: Any, r: Any, o: Any, dtype: str = "float64") -> Any:
    """Mask of the elements of a result `v` that are NaN, +inf, -inf or finite where neither the reference `r` nor the
    baseline `o` is; all in float64. `xp`: NumPy or Torch. Values within rounding of the largest number of `dtype` may
    be infinite or finite."""
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
    "WorstError",
    "differing",
    "misplaced",
    "module_of",
    "share",
    "wide",
    "worst",
]
