"""Predicts times from related measured kernels: those of the same kernel, name or family.

A kernel's log(time / roofline) is the mean of that of its nearest relatives, weighted by the inverse squared distance
in the logarithms of flops and bytes, and in labels (dtypes, memory order, schedule, …). The interval comes from
predicting each relative from the others.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ...egraph.types.dtypes import DTYPES, itemsize
from ..keys.key import Work
from .roofline import CALIBRATION, Rooflines, first_dtype

if TYPE_CHECKING:
    from ..store.snapshot import Measurement, Snapshot
    from .predict import Query

Place: TypeAlias = tuple[str, str, str, str]  # (level, label, backend, device)
Array: TypeAlias = "np.ndarray[Any, np.dtype[np.float64]]"

IMPLAUSIBLE_FACTOR = 100.0
"""A stored time below the bound by more than this factor is implausible: prediction ignores it, and it counts as
measured only if this process measured it (then the work was overstated)."""

LABEL_DISTANCE = {
    "dtypes": 1.0, "rows": 1.0, "schedule": 0.7, "order": 0.5, "form": 0.5, "source": 0.3, "toolchain": 0.1,
}  # fmt: skip
"""Distance between two kernels of equal work that differ in this label, in units of a factor e of work. `order`: memory
order of the operands' axes. `rows`: alignment in bytes of the operands' rows. `form`: names of the schedule's
parameters."""

_WIDEST = 16
"""Widest vectorized load in bytes, which requires an address aligned to it. With rows aligned to less, as many times
more instructions load the same data; a compute-bound kernel, which loads each element many times, may be slower than
aligned relatives by that factor. If no relative is aligned as little, the prediction is the middle, and the interval
covers the factor."""

_ELSEWHERE = 0.25
"""Share of the relatives' log distance from the bound at which the interval begins, for a kernel whose operand order or
schedule form no relative has: channels-last images ran 5 times as fast as others, warp-specialized attention 2.5 times
as fast as attention without warp specialization."""

_OTHER_DEVICE = math.log(1.5)
"""Log factor by which both ends of the interval move if the relatives ran on other devices of the same kind."""

ANY = ":*"  # ends the device of a place that stands for all devices of a kind

_NEAREST = 8
_CLOSE = 0.1  # smaller distances count alike: neighbours this near differ by noise
_QUANTILES = (0.1, 0.9)
_FEW = 4  # with fewer residuals the spread is the largest residual, and at least _FEW_SPREAD
_FEW_SPREAD, _LEAST_SPREAD, _PER_DISTANCE = math.log(1.5), math.log(1.05), 0.1

#: Schedule parameters with which a kernel is about as fast as without them: those that generators declare as `common`.
COMMON = ("early", "warm", "boxes", "split", "join")


class RelatedKernels:
    """Measured keys (kernels at one shape, layout, schedule and machine) of one kernel, name or family, and the
    residuals of predicting each from the others. In groups of several kernels, a key is predicted only from keys of
    other kernels, like a kernel that was never measured."""

    def __init__(
        self, snapshot: Snapshot, regime: str, rooflines: Rooflines, digests: Sequence[str], place: Place
    ) -> None:
        self._rooflines = rooflines
        self._elsewhere = _OTHER_DEVICE if place[3].endswith(ANY) else 0.0
        rows = [(digest, snapshot.first_row(digest), snapshot.measurement(digest, regime)) for digest in digests]
        ratios = [_log_ratio(row, measurement, rooflines) for _, row, measurement in rows]
        taught = [(digest, row) for (digest, row, _), ratio in zip(rows, ratios) if ratio is not None]
        self.digests = [digest for digest, _ in taught]
        base = snapshot.learnt_of([digest for digest, _ in taught])
        self._ratios = np.array([ratio for ratio in ratios if ratio is not None]) - base
        self._features = _features([(row["flops"], row["bytes"]) for _, row in taught])
        self._codes: dict[str, dict[str, int]] = {name: {} for name in LABEL_DISTANCE}
        self._labels = {
            name: np.array([codes.setdefault(label(row, name), len(codes)) for _, row in taught], dtype=np.int64)
            for name, codes in self._codes.items()
        }
        self.residuals = self._leave_out(np.array([row["kernel"] for _, row in taught]), place[0] != "kernel")
        low, high = _spread(self.residuals[np.isfinite(self.residuals)])
        learnt = snapshot.learnt.spread(place[3])  # wider than residuals of rows that the model was fitted to
        self._low, self._high = min(low, learnt[0]), max(high, learnt[1])

    def predict(self, queries: Sequence[Query], base: Array) -> list[tuple[float, float, float, int]]:
        """For each query (low, middle, high factor over its bound, number of neighbours used). `base`: log factors of
        the learnt model."""
        features = _features([(query.work.flops, query.work.bytes) for query in queries])
        labels = {
            name: np.array([codes.get(query.labels[name], -1) for query in queries])
            for name, codes in self._codes.items()
        }
        distances = self._distances(features, labels)
        nearby, count = self._weighted(distances)
        middle = nearby + base
        beyond = _PER_DISTANCE * np.sqrt(distances.min(axis=1))
        low = middle + self._low - beyond
        low = np.where((labels["order"] < 0) | (labels["form"] < 0), np.minimum(low, _ELSEWHERE * middle), low)
        narrower = self._narrower(queries, labels["rows"])
        high = middle + self._high + beyond + narrower
        bands = np.exp(np.stack([low - self._elsewhere, middle + narrower / 2, high + self._elsewhere]))
        return [(low, at, high, count) for low, at, high in bands.T.tolist()]

    def _narrower(self, queries: Sequence[Query], rows: np.ndarray[Any, Any]) -> Array:
        """Log ratio of load instructions for a query's rows to those of the least aligned member; 0 for memory-bound
        kernels."""
        seen = min(map(_narrowest, self._codes["rows"]), default=_WIDEST)
        found = np.zeros(len(queries))
        for at in np.flatnonzero(rows < 0).tolist():
            own = _narrowest(queries[at].labels["rows"])
            if own < seen and self._by_arithmetic(queries[at]):
                found[at] = math.log(seen / own)
        return found

    def _by_arithmetic(self, query: Query) -> bool:
        """Whether a kernel is compute-bound under its roofline."""
        roofline = self._rooflines.of(query.key.device, query.key.backend, first_dtype(query.key.columns["dtypes"]))
        return query.work.flops / roofline.flops_per_us > query.work.bytes / roofline.bytes_per_us

    def _distances(self, features: Array, labels: dict[str, np.ndarray[Any, Any]]) -> Array:
        """Squared distances of queries (rows) to members (columns)."""
        distances = np.zeros((len(features), len(self._ratios)))
        for axis in range(features.shape[1]):
            distances += (features[:, axis, None] - self._features[None, :, axis]) ** 2
        for name, weight in LABEL_DISTANCE.items():
            if len(self._codes[name]) == 1 and not labels[name].any():  # all have the one label, of code 0
                continue
            distances += weight**2 * (labels[name][:, None] != self._labels[name][None, :])
        return distances

    def _weighted(self, distances: Array) -> tuple[Array, int]:
        """(the members' log ratios at each query, weighted by nearness; NaN if all distances are infinite, number of
        neighbours)."""
        count = min(_NEAREST, distances.shape[1])
        near = np.argpartition(distances, count - 1, axis=1)[:, :count]
        weights = 1.0 / (np.take_along_axis(distances, near, axis=1) + _CLOSE**2)
        with np.errstate(invalid="ignore", divide="ignore"):
            return (weights * self._ratios[near]).sum(axis=1) / weights.sum(axis=1), count

    def _leave_out(self, kernels: np.ndarray[Any, Any], apart: bool) -> Array:
        """Residual log ratio (measured - predicted) of every member without itself (and, if `apart`, without its
        kernel)."""
        if not len(self._ratios):
            return np.array([])
        distances = self._distances(self._features, self._labels)
        hidden = np.eye(len(kernels), dtype=bool)
        if apart and len(set(kernels.tolist())) > 1:
            hidden |= kernels[:, None] == kernels[None, :]
        distances[hidden] = np.inf
        return np.asarray(self._ratios - self._weighted(distances)[0])


def _spread(residuals: Array) -> tuple[float, float]:
    """(lower, upper) bound of the interval around a predicted log ratio: quantiles of the held-out residuals, widened
    if there are few."""
    if len(residuals) < _FEW:
        largest = max(_FEW_SPREAD, float(np.abs(residuals).max(initial=0.0)))
        return -largest, largest
    low, high = np.quantile(residuals, _QUANTILES)
    return min(float(low), -_LEAST_SPREAD), max(float(high), _LEAST_SPREAD)


def label(columns: Mapping[str, Any], name: str) -> str:
    """Value of a label of LABEL_DISTANCE for a key, from the key's columns (texts, as stored)."""
    if name == "order":
        return _order(columns["strides"], columns["shapes"])
    if name == "rows":
        return _rows(columns["strides"], columns["shapes"], columns["dtypes"])
    return _form(columns["schedule"]) if name == "form" else str(columns[name])


@lru_cache(maxsize=1 << 14)
def _form(schedule: str) -> str:
    """Sorted names of a schedule's parameters, from JSON text, without those of `COMMON`."""
    found = json.loads(schedule) if schedule else []
    return repr(sorted(str(n[0]) for n in found if isinstance(n, list) and n[0] not in COMMON))


@lru_cache(maxsize=1 << 14)
def _order(strides: str, shapes: str) -> str:
    """For each operand, its axes of more than one element from the outermost to the innermost in memory; from JSON
    texts."""
    found = []
    for steps, sizes in zip(json.loads(strides), json.loads(shapes)):
        if not isinstance(steps, list) or not isinstance(sizes, list) or len(steps) != len(sizes):
            continue
        axes = [i for i, size in enumerate(sizes) if size != 1]
        found.append(sorted(axes, key=lambda i: -steps[i]))
    return repr(found)


@lru_cache(maxsize=1 << 14)
def _rows(strides: str, shapes: str, dtypes: str) -> str:
    """For each operand, the alignment of its rows in bytes (a power of two, at most `_WIDEST`); from JSON texts."""
    found = []
    for steps, sizes, dtype in zip(json.loads(strides), json.loads(shapes), json.loads(dtypes)):
        if not isinstance(steps, list) or not isinstance(sizes, list) or len(steps) != len(sizes):
            continue
        apart = [_itemsize(dtype) * step for step, size in zip(steps, sizes) if size != 1 and step != 1]
        found.append(math.gcd(_WIDEST, *apart))
    return ",".join(map(str, found))


@lru_cache(maxsize=1 << 10)
def _narrowest(rows: str) -> int:
    """The smallest alignment in a text of `_rows`."""
    return min(map(int, rows.split(",")), default=_WIDEST) if rows else _WIDEST


def _itemsize(dtype: object) -> int:
    """Bytes per element of a dtype name; 4 for unknown names."""
    return itemsize(str(dtype)) if str(dtype) in DTYPES else 4


def _features(works: Sequence[tuple[float, float]]) -> Array:
    return np.log1p(np.array(works, dtype=np.float64).reshape(-1, 2))


def _log_ratio(row: dict[str, Any], measurement: Measurement | None, rooflines: Rooflines) -> float | None:
    """log(time / bound) of a stored key; None for calibration rows and implausible times."""
    if row["family"] == CALIBRATION:
        return None
    bound = rooflines.bound_us(row, Work(row["flops"], row["bytes"]))
    if measurement is None or measurement.us * IMPLAUSIBLE_FACTOR < bound:
        return None
    return math.log(measurement.us / bound)


__all__ = ["ANY", "COMMON", "IMPLAUSIBLE_FACTOR", "LABEL_DISTANCE", "Place", "RelatedKernels", "label"]
