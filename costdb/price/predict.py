"""Price prediction: the measured time, otherwise an estimate from the nearest measured relatives, otherwise the
roofline.

The interpolated quantity is log(time / roofline), the distance from the lower bound, less what the device's learnt model
(learnt.py) says of it, if there is one. It varies slowly with size, while time spans six decades and is not linear in any
one measure of size.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from ...egraph.ir.dtypes import DTYPES, itemsize
from ...egraph.ir.memo import memo
from ..keys.key import KernelKey, Work
from ..reports.reports import FamilyStats
from .learnt import first_dtype
from .roofline import CALIBRATION, DeviceRoofline, Rooflines

if TYPE_CHECKING:
    from ..store.snapshot import Measurement, Snapshot

_PLACED = ("kernel", "name", "family", "backend", "device")

Source: TypeAlias = Literal["measured", "predicted", "bound"]
Place: TypeAlias = tuple[str, str, str, str]  # (level, label, backend, device)
Array: TypeAlias = "np.ndarray[Any, np.dtype[np.float64]]"

UNKNOWN_FACTOR = 30.0
"""Assumed largest ratio of time to lower bound for a kernel without relatives."""

IMPLAUSIBLE_FACTOR = 100.0
"""A stored time below the bound by more than this factor is implausible: prediction ignores it, and it counts as
measured only if this process measured it (then the work was overstated)."""

SHIPPED_FACTOR = 1.25
"""Factor within which this machine is expected to confirm a shipped time. Above 1 / MIN_CERTAINTY of a search
(extract/search/measurement_state.py): kernels of a plan with such a price are measured again."""

_LEVELS = (("kernel", 1), ("name", 2), ("family", 3))
"""Field that relatives share (besides backend and device), nearest level first, and the number of relatives
required."""

_LABEL_DISTANCE = {
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
_LARGEST_GROUP = 256  # largest group: residuals take quadratic time


@dataclass(frozen=True)
class Query:
    """A kernel to be priced: its key and work."""

    key: KernelKey
    work: Work

    @cached_property
    def labels(self) -> dict[str, str]:
        """Values of the key fields that predictions weigh by similarity (`_LABEL_DISTANCE`)."""
        return {name: _label(self.key.columns, name) for name in _LABEL_DISTANCE}


@dataclass(frozen=True, slots=True)
class Price:
    """A time in µs with its prediction interval, its source, and the number of runs, or of similar measured kernels, it
    is based on. `shipped`: measured, but only elsewhere, on a device of the same model (costdb/store/starter.py).
    """

    us: float
    low: float
    high: float
    source: Source
    n: int
    shipped: bool = False


@dataclass(frozen=True, slots=True)
class HeldOut:
    """A measured time and its prediction from other kernels, in µs, with the kernel's family and device."""

    name: str
    family: str
    backend: str
    device: str
    measured_us: float
    predicted_us: float


class Predictor:
    """Price predictor fitted to one snapshot in one cache regime. Deterministic: equal snapshots give bitwise equal
    prices.
    """

    def __init__(self, snapshot: Snapshot, regime: str = "hot") -> None:
        self.rooflines = Rooflines(snapshot, regime)
        self._snapshot, self._regime = snapshot, regime
        self._members: dict[Place, dict[str, None]] | None = None
        self._groups: dict[Place, _Group] = {}

    def price(self, queries: Sequence[Query]) -> list[Price]:
        """One price per query, in order: the measured time, else a prediction from similar kernels, else the roofline
        bound.

        A plausible measurement has precedence; then the relatives of the first level with enough of them (same kernel,
        same name, same family; on the same backend and device, or else on devices of the same kind); then the bound, times
        the factor of a learnt model if there is one.
        """
        prices: list[Price | None] = []
        strangers: list[tuple[int, float]] = []
        waiting: dict[Place, list[tuple[int, float]]] = {}
        for index, query in enumerate(queries):
            bound = self.roofline(query.key).us(query.work)
            place = None
            price = self._measured(query.key, bound)
            if price is None and (place := self._relatives(query.key)) is None:
                strangers.append((index, bound))
            if place is not None:
                waiting.setdefault(place, []).append((index, bound))
            prices.append(price)
        unknown = [index for members in (*waiting.values(), strangers) for index, _ in members]
        learnt = self._snapshot.learnt.of([queries[i].key.columns for i in unknown], [queries[i].work for i in unknown])
        bases = dict(zip(unknown, learnt.tolist()))
        for place, members in waiting.items():
            asked, base = [queries[i] for i, _ in members], np.array([bases[i] for i, _ in members])
            for (index, bound), (low, middle, high, n) in zip(members, self._group(place).predict(asked, base)):
                prices[index] = Price(bound * middle, bound * low, bound * high, "predicted", n)
        for index, bound in strangers:
            factor = math.exp(bases[index])
            source: Source = "bound" if factor == 1.0 else "predicted"
            prices[index] = Price(
                bound * factor, bound * min(1.0, factor), bound * max(factor, UNKNOWN_FACTOR), source, 0
            )
        return [price for price in prices if price is not None]

    def _measured(self, key: KernelKey, bound: float) -> Price | None:
        measured = self._snapshot.measurement(key.digest, self._regime)
        if measured is None or not (measured.own or measured.us * IMPLAUSIBLE_FACTOR >= bound):
            return None
        if measured.shipped:
            low, high = measured.us / SHIPPED_FACTOR, measured.us * SHIPPED_FACTOR
            low = min(low, bound) if measured.alone else low
            return Price(measured.us, min(measured.low, low), max(measured.high, high), "measured", measured.n, True)
        return Price(measured.us, measured.low, measured.high, "measured", measured.n)

    def roofline(self, key: KernelKey) -> DeviceRoofline:
        """The roofline of a key's device, backend and first dtype."""
        first = key.dtypes[0] if key.dtypes else "float32"
        return self.rooflines.of(key.device, key.backend, str(first))

    def _relatives(self, key: KernelKey) -> Place | None:
        """The nearest group with enough members that have usable times."""
        members = self._places()
        for device in (key.device, any_of_kind(key.device)):
            for level, needed in _LEVELS:
                place = (level, getattr(key, level), key.backend, device)
                if len(members.get(place, ())) >= needed and self._group(place).digests:
                    return place
        return None

    def _places(self) -> dict[Place, dict[str, None]]:
        if self._members is None:
            self._members = {}
            self.learn(self._snapshot.digests())
        return self._members

    def learn(self, digests: Iterable[str]) -> None:
        """Register keys that were added to the snapshot; other fitted groups stay valid."""
        members = self._places()
        for digest in digests:
            row = self._snapshot.first_row(digest, _PLACED)
            for level, _ in _LEVELS if row["family"] != CALIBRATION else ():
                for device in (row["device"], any_of_kind(row["device"])):
                    place = (level, row[level], row["backend"], device)
                    members.setdefault(place, {})[digest] = None
                    self._groups.pop(place, None)

    def _group(self, place: Place) -> _Group:
        if place not in self._groups:
            digests = sorted(self._places()[place])
            if len(digests) > _LARGEST_GROUP:  # digests are uniformly distributed: an even and repeatable sample
                digests = [digests[int(at)] for at in np.linspace(0, len(digests) - 1, _LARGEST_GROUP)]
            self._groups[place] = _Group(self._snapshot, self._regime, self.rooflines, digests, place)
        return self._groups[place]

    def held_out(self) -> tuple[FamilyStats, ...]:
        """Error of predictions per family and backend: each measured key (at most 256 per device) predicted without
        itself.
        """
        members = self._places()
        pooled: dict[tuple[str, str], tuple[int, list[float]]] = {}
        for place in sorted(p for p in members if p[0] == "family" and not p[3].endswith(ANY)):
            keys, before = pooled.get((place[1], place[2]), (0, []))
            pooled[place[1], place[2]] = (keys + len(members[place]), before + self._errors(place))
        return tuple(_family_stats(*names, keys, errors) for names, (keys, errors) in pooled.items() if keys)

    def _errors(self, place: Place) -> list[float]:
        """|log(predicted / measured)| of a family's keys, each predicted at the level it would have without itself."""
        return [abs(error) for _, error in self._residuals(place)]

    def held_out_pairs(self) -> list[HeldOut]:
        """Measured times, each beside its prediction from other kernels: at most 256 keys of every family and device."""
        found = []
        for place in sorted(place for place in self._places() if place[0] == "family"):
            for digest, error in self._residuals(place):
                measured = self._snapshot.measurement(digest, self._regime)
                if measured is not None:
                    name = str(self._snapshot.first_row(digest, ("name",))["name"])
                    found.append(HeldOut(name, *place[1:], measured.us, measured.us * math.exp(-error)))
        return found

    def _residuals(self, place: Place) -> list[tuple[str, float]]:
        """(digest, log(measured / predicted)) of a family's keys, each predicted at the level it would have without
        itself."""
        wanted = self._group(place).digests
        rows = {digest: self._snapshot.first_row(digest) for digest in wanted}
        found: dict[str, float] = {}
        for level, needed in _LEVELS:
            for own in {(level, str(rows[digest][level]), *place[2:]) for digest in wanted if digest not in found}:
                if len(self._places()[own]) > needed:
                    group = self._group(own)
                    errors = zip(group.digests, group.residuals.tolist())
                    found.update((d, e) for d, e in errors if d in rows and d not in found and math.isfinite(e))
        return [(digest, found[digest]) for digest in wanted if digest in found]


class _Group:
    """Measured keys of one kernel, name or family, and the residuals of predicting each from the others. In groups of
    several kernels, a key is predicted only from keys of other kernels, like a kernel that was never measured.
    """

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
        self._codes: dict[str, dict[str, int]] = {name: {} for name in _LABEL_DISTANCE}
        self._labels = {
            name: np.array([codes.setdefault(_label(row, name), len(codes)) for _, row in taught], dtype=np.int64)
            for name, codes in self._codes.items()
        }
        self.residuals = self._leave_out(np.array([row["kernel"] for _, row in taught]), place[0] != "kernel")
        low, high = _spread(self.residuals[np.isfinite(self.residuals)])
        learnt = snapshot.learnt.spread(place[3])  # wider than residuals of rows that the model was fitted to
        self._low, self._high = min(low, learnt[0]), max(high, learnt[1])

    def predict(self, queries: Sequence[Query], base: Array) -> list[tuple[float, float, float, int]]:
        """For each query (low, middle, high factor over its bound, number of neighbours used). `base`: log factors of the
        learnt model."""
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
        for name, weight in _LABEL_DISTANCE.items():
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


def any_of_kind(device: str) -> str:
    """Device name that groups measurements of all devices of a kind: "cpu:*", "gpu:*"."""
    return device.partition(":")[0] + ANY


def _spread(residuals: Array) -> tuple[float, float]:
    """Interval around a predicted log ratio: quantiles of the held-out residuals, widened if there are few."""
    if len(residuals) < _FEW:
        largest = max(_FEW_SPREAD, float(np.abs(residuals).max(initial=0.0)))
        return -largest, largest
    low, high = np.quantile(residuals, _QUANTILES)
    return min(float(low), -_LEAST_SPREAD), max(float(high), _LEAST_SPREAD)


def _family_stats(family: str, backend: str, keys: int, errors: list[float]) -> FamilyStats:
    middle, high = (float(np.quantile(errors, at)) if errors else math.nan for at in (0.5, 0.9))
    return FamilyStats(family, backend, keys, len(errors), middle, high)


def _label(columns: Mapping[str, Any], name: str) -> str:
    """A key's value of a label."""
    if name == "order":
        return _order(columns["strides"], columns["shapes"])
    if name == "rows":
        return _rows(columns["strides"], columns["shapes"], columns["dtypes"])
    return _form(columns["schedule"]) if name == "form" else str(columns[name])


#: Schedule parameters with which a kernel is about as fast as without them: those that generators declare as `common`.
COMMON = ("early", "warm", "boxes", "split", "join")


@memo(1 << 14)
def _form(schedule: str) -> str:
    """Sorted names of a schedule's parameters, from JSON text, without those of `COMMON`."""
    found = json.loads(schedule) if schedule else []
    return repr(sorted(str(n[0]) for n in found if isinstance(n, list) and n[0] not in COMMON))


@memo(1 << 14)
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


@memo(1 << 14)
def _rows(strides: str, shapes: str, dtypes: str) -> str:
    """For each operand, the alignment of its rows in bytes (a power of two, at most `_WIDEST`); from JSON texts."""
    found = []
    for steps, sizes, dtype in zip(json.loads(strides), json.loads(shapes), json.loads(dtypes)):
        if not isinstance(steps, list) or not isinstance(sizes, list) or len(steps) != len(sizes):
            continue
        apart = [_itemsize(dtype) * step for step, size in zip(steps, sizes) if size != 1 and step != 1]
        found.append(math.gcd(_WIDEST, *apart))
    return ",".join(map(str, found))


@memo(1 << 10)
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
    bound = rooflines.of(row["device"], row["backend"], first_dtype(row["dtypes"])).us(Work(row["flops"], row["bytes"]))
    if measurement is None or measurement.us * IMPLAUSIBLE_FACTOR < bound:
        return None
    return math.log(measurement.us / bound)
