"""Sums errors per slice of an output, and computes the limits of elements and slices that follow from these sums.

A slice is all elements with one index along an axis; a single long axis is cut into stretches. The limits are explained
in compare.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

BESIDE = 4.0  # allowed error as a multiple of the whole output's relative error times the root mean square of the slice
OWN = 12.0  # multiple of the baseline's root mean square error in a slice that an element may be off by
SLICE = 3.0  # multiple of the allowed error of the whole, and of the baseline's error, for a slice's norm
MIN_SLICE_ELEMENTS = 32  # minimum elements of a slice: fewer give no useful mean
STRETCH = 256  # elements of a stretch of a long axis

#: Smallest number of a dtype with full precision.
SMALLEST = {"float64": 2.2250738585072014e-308, "float32": 2.0**-126, "float16": 2.0**-22, "bfloat16": 2.0**-126}


@dataclass(frozen=True)
class WorstError:
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
    def message(self) -> str:
        """Text for messages: where the error is, how large it is and how much is allowed."""
        return f"{self.where}: off by {self.error:.3g}, where {self.limit:.3g} is allowed beside {self.size:.3g}"


class MatrixShape:
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
        if min(self.rows, self.columns) == 1 and total >= 4 * MIN_SLICE_ELEMENTS:  # a single long axis
            self.stretched = True
            width = next((w for w in range(STRETCH, MIN_SLICE_ELEMENTS - 1, -1) if total % w == 0), 0)
            self.columns = width or total
            self.rows = total // self.columns
            self.leading, self.trailing = (self.rows,), (self.columns,)

    def of(self, x: Any) -> Any:
        """The array viewed as a matrix of these rows and columns; unchanged if it is empty."""
        return x.reshape(self.rows, self.columns) if self.total else x

    def axes(self) -> Iterator[tuple[bool, int, int]]:
        """Yields the axes whose slices are large enough for a limit: (whether the axis belongs to the rows, axis,
        elements per slice)."""
        for first, sizes in ((True, self.leading), (False, self.trailing)):
            if self.stretched and not first:
                continue
            for axis, size in enumerate(tuple(sizes)):
                if size > 1 and self.total // size >= MIN_SLICE_ELEMENTS:
                    yield first, axis, self.total // size

    def name(self, first: bool, axis: int, index: int) -> str:
        """Description of slice number `index` of an axis of the rows (`first`) or of the columns, for messages."""
        if self.stretched:
            return f"in places {index * self.columns} to {(index + 1) * self.columns - 1}"
        return f"at index {index} of axis {axis if first else axis + len(self.leading)}"


class SliceSums:
    """Sums per row and per column of a matrix: squares of the error, of the reference and of the baseline's error, and
    the number of elements where the baseline has an error (copied elements have none). Without a baseline there are
    none of the last two."""

    def __init__(self, flat: MatrixShape, xp: Any) -> None:
        self.flat, self.xp = flat, xp
        self.by_row: list[list[Any]] = [[], [], [], []]
        self.by_column: list[Any] = [None, None, None, None]

    def add(self, gap: Any, reference: Any, lost: Any | None) -> None:
        """Add further rows: their errors (`gap`), reference values, and the baseline's errors (`lost`; always or never
        None)."""
        beside = () if lost is None else (lost, (lost != 0) * self.xp.ones_like(lost))
        for k, x in enumerate((gap, reference, *beside)):
            if self.xp is np:
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

    def slices(self, dtype: str, allowed: float) -> WorstError:
        """The slice whose error norm is nearest to its limit, or farthest beyond; `allowed`: relative error in
        `dtype`."""
        found = WorstError()
        for first, axis, count in self.flat.axes():
            gap, size = (self.xp.sqrt(self._along(k, first, axis)) for k in range(2))
            lost = 0.0 if self.by_column[2] is None else self._lost(first, axis)
            limit = SLICE * (allowed * size + lost) + SMALLEST[dtype] * math.sqrt(count)
            at, (ratio, error, most, beside) = largest(self.xp, gap / limit, gap, limit, size)
            if ratio > found.ratio:
                found = WorstError(ratio, error, most, beside, self.flat.name(first, axis, at))
        return found

    def _lost(self, first: bool, axis: int) -> Any:
        """Norms of the baseline's error per slice of an axis.

        In slices with few inexact elements the norm may be near zero by chance; there it is at least
        `OWN / SLICE` times the norm of as many errors of the output's mean magnitude.
        """
        lost, inexact = self.xp.sqrt(self._along(2, first, axis)), self._along(3, first, axis)
        total = float(self.by_column[3].sum())
        mean = math.sqrt(float(self.by_column[2].sum()) / max(total, 1.0))
        few = OWN / SLICE * mean * self.xp.sqrt(inexact)
        return self.xp.where(inexact < MIN_SLICE_ELEMENTS, self.xp.maximum(lost, few), lost)

    def limits(self, allowed: float) -> ElementLimits:
        """Absolute error limits per row and per column, from the relative error `allowed` and the baseline's errors.

        To these, a caller adds the limit that is relative to an element's value.
        """
        xp, flat = self.xp, self.flat
        known = (1,) if self.by_column[2] is None else (1, 2, 3)
        total = [self.by_column[k].sum().reshape(1) for k in known]
        whole = self._limit(total, flat.total, allowed, least=1)
        rows, columns = whole + xp.zeros_like(self._rows(1)), whole + xp.zeros_like(self.by_column[1])
        for first, axis, count in flat.axes():
            line = self._limit([self._along(k, first, axis) for k in known], count, allowed)
            sizes = flat.leading if first else flat.trailing
            shaped = line.reshape([-1 if i == axis else 1 for i in range(len(sizes))])
            full = (shaped + xp.zeros_like((rows if first else columns).reshape(sizes))).reshape(-1)
            if first:
                rows = xp.minimum(rows, full)
            else:
                columns = xp.minimum(columns, full)
        return ElementLimits(xp, rows, columns)

    def _limit(self, sums: list[Any], count: int, allowed: float, least: int = MIN_SLICE_ELEMENTS) -> Any:
        """Error limits of elements in slices of `count` elements.

        The baseline's mean error is taken over elements with an error, because an output such as a cache has
        many copied elements besides one computed row. Infinite for slices with 1 to `least` - 1 such elements,
        too few for a useful mean.
        """
        xp, size = self.xp, self.xp.sqrt(sums[0] / count)
        if len(sums) == 1:
            return BESIDE * allowed * size
        inexact = sums[2]
        limit = BESIDE * allowed * size + OWN * xp.sqrt(sums[1] / xp.clip(inexact, 1, None))
        return xp.where((inexact > 0) & (inexact < least), xp.full_like(limit, math.inf), limit)


@dataclass(frozen=True)
class ElementLimits:
    """Absolute error limit for each row and each column of a matrix; the smaller one applies to an element. `xp`: the
    array module of the limits, NumPy or Torch."""

    xp: Any
    rows: Any
    columns: Any

    def of(self, rows: slice) -> Any:
        """The limits of all elements in some rows."""
        return self.xp.minimum(self.rows[rows][:, None], self.columns[None, :])

    def least(self, rows: slice) -> float:
        """The smallest error limit of an element in the rows `rows`."""
        row, column = self.rows[rows].min(), self.columns.min()
        return min(float(row), float(column)) if self.xp is np else min(self.xp.stack([row, column]).tolist())


def largest(xp: Any, ratios: Any, *beside: Any) -> tuple[int, list[float]]:
    """Index of the largest of `ratios`, a vector, and the values there: its own, then those of vectors `beside` it; of
    tensors on a device in one transfer."""
    at = ratios.argmax()
    if xp is np:
        return int(at), [float(x[at]) for x in (ratios, *beside)]
    place, *values = xp.stack([at.double(), *(x[at] for x in (ratios, *beside))]).tolist()
    return int(place), values


__all__ = ["SMALLEST", "ElementLimits", "MatrixShape", "SliceSums", "WorstError"]
