"""Predicts the price of a kernel: the measured time, otherwise an estimate from the nearest measured relatives,
otherwise the roofline (lower bound).

The interpolated quantity is log(time / roofline), the distance from the lower bound, minus the prediction of the
device's learnt model (learnt.py), if there is one. It varies slowly with size, while time spans six decades and is not
linear in any one measure of size.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from ..keys.key import KernelKey, Work
from ..reports.reports import FamilyStats
from .numpy_loops import SPREAD
from .related_kernels import ANY, IMPLAUSIBLE_FACTOR, LABEL_DISTANCE, Place, RelatedKernels, label
from .roofline import CALIBRATION, DeviceRoofline, Rooflines

if TYPE_CHECKING:
    from ..store.snapshot import Snapshot

_PLACED = ("kernel", "name", "family", "backend", "device")

Source: TypeAlias = Literal["measured", "predicted", "bound"]

UNKNOWN_FACTOR = 30.0
"""Assumed largest ratio of time to lower bound for a kernel without relatives."""

SHIPPED_FACTOR = 1.25
"""Factor within which this machine is expected to confirm a shipped time. Above 1 / MIN_CERTAINTY of a search
(extract/search/measurement_state.py): kernels of a plan with such a price are measured again."""

REACHED, DOUBTED = 0.97, 0.85
"""On a GPU with cold caches, where rooflines follow the fastest measured kernels, an interval begins at this share of
the roofline, or of the estimate if that is less. Else each further form of a product that reads its weights at full
bandwidth may seem to save a quarter of its time, and searches measure all of them."""

_LEVELS = (("kernel", 1), ("name", 2), ("family", 3))
"""Field that relatives share (besides backend and device), nearest level first, and the number of relatives
required."""

_LARGEST_GROUP = 256  # largest group: residuals take quadratic time


@dataclass(frozen=True)
class Query:
    """A kernel to be priced: its key (a kernel at one shape, layout, schedule and machine) and work."""

    key: KernelKey
    work: Work

    @cached_property
    def labels(self) -> dict[str, str]:
        """Values of the key fields that predictions weigh by similarity (`LABEL_DISTANCE`)."""
        return {name: label(self.key.columns, name) for name in LABEL_DISTANCE}


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

    `shipped`: predictor of the snapshot that this one includes (`Snapshot.include`). Its groups of relatives are used
    where the other rows change neither members nor rooflines.
    """

    def __init__(self, snapshot: Snapshot, regime: str = "hot", shipped: Predictor | None = None) -> None:
        self.rooflines = Rooflines(snapshot, regime)
        self._snapshot, self._regime = snapshot, regime
        self._shipped = shipped if shipped is not None and shipped._holds_for(snapshot, self.rooflines) else None
        self._members: dict[Place, dict[str, None]] | None = None
        self._groups: dict[Place, RelatedKernels] = {}
        self._nearest: dict[tuple[str, ...], tuple[Place | None]] = {}  # results of `_relatives`
        self._predicted: dict[tuple[str, Work], tuple[RelatedKernels, Price]] = {}  # last predictions, and their groups

    def prepare(self) -> None:
        """Sort the snapshot's kernels into groups of relatives and predict their times by the learnt models, which the
        first prediction would do: a second or more for shipped rows."""
        self._places()
        self._snapshot.learnt_of(())

    def price(self, queries: Sequence[Query]) -> list[Price]:
        """One price per query, in order: the measured time, else a prediction from similar kernels, else the roofline
        bound.

        A plausible measurement has precedence; then similar measured kernels (relatives) of the first level with enough
        of them (same kernel, same name, same family; on the same backend and device, or else on devices of the same
        kind); then the bound, times the factor of a learnt model if there is one.
        """
        prices: list[Price | None] = []
        without_relatives: list[tuple[int, float]] = []
        waiting: dict[Place, list[tuple[int, float]]] = {}
        for index, query in enumerate(queries):
            bound = self.rooflines.bound_us(query.key.columns, query.work)
            place = None
            price = self._measured(query.key, bound)
            if price is None and (place := self._relatives(query.key)) is None:
                without_relatives.append((index, bound))
            if place is not None:
                known = self._predicted.get((query.key.digest, query.work))
                if known is not None and known[0] is self._group(place):
                    price = known[1]
                else:
                    waiting.setdefault(place, []).append((index, bound))
            prices.append(price)
        unknown = [index for members in (*waiting.values(), without_relatives) for index, _ in members]
        learnt = self._snapshot.learnt_factors([queries[i].key for i in unknown], [queries[i].work for i in unknown])
        bases = dict(zip(unknown, learnt.tolist()))
        for place, members in waiting.items():
            asked, base = [queries[i] for i, _ in members], np.array([bases[i] for i, _ in members])
            group = self._group(place)
            for (index, bound), (low, middle, high, n) in zip(members, group.predict(asked, base)):
                if self._regime == "cold":
                    low = max(low, min(REACHED, DOUBTED * middle))
                made = prices[index] = Price(bound * middle, bound * low, bound * high, "predicted", n)
                self._predicted[queries[index].key.digest, queries[index].work] = group, made
        for index, bound in without_relatives:
            factor = math.exp(bases[index])
            source: Source = "bound" if factor == 1.0 else "predicted"
            query = queries[index]
            least = max(self.roofline(query.key).us(query.work), bound / SPREAD)  # below an estimated bound
            prices[index] = Price(
                bound * factor, least * min(1.0, factor), bound * max(factor, UNKNOWN_FACTOR), source, 0
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
        """The group of kernels nearest to that of `key` (`_LEVELS`) with enough members that have usable times; None if
        there is none."""
        asked = (key.backend, key.device, *(getattr(key, level) for level, _ in _LEVELS))
        found = self._nearest.get(asked)
        if found is None:
            found = self._nearest[asked] = (self._nearest_place(key),)
        return found[0]

    def _nearest_place(self, key: KernelKey) -> Place | None:
        members = self._places()
        for device in (key.device, any_of_kind(key.device)):
            for level, needed in _LEVELS:
                place = (level, getattr(key, level), key.backend, device)
                if len(members.get(place, ())) >= needed and self._group(place).digests:
                    return place
        return None

    def _holds_for(self, other: Snapshot, rooflines: Rooflines) -> bool:
        """Whether rooflines, and the groups to which rows of this predictor's snapshot belong, are the same for a
        snapshot that includes it."""
        own, row = self._snapshot, self._snapshot.first_row
        both = [digest for digest in other.not_included() if own.has(digest)]
        same = all(row(digest, _PLACED) == other.first_row(digest, _PLACED) for digest in both)
        return same and rooflines.measured() == self.rooflines.measured()

    def _places(self) -> dict[Place, dict[str, None]]:
        if self._members is None:
            members = dict(self._shared())
            self._add(members, self._snapshot.digests() if self._shipped is None else self._snapshot.not_included())
            self._members = members
        return self._members

    def _shared(self) -> Mapping[Place, dict[str, None]]:
        return {} if self._shipped is None else self._shipped._places()

    def learn(self, digests: Iterable[str]) -> None:
        """Take keys (kernels at one shape, layout, schedule and machine) that were added to the snapshot into account;
        only the groups with such keys are fitted again."""
        self._add(self._places(), digests)
        self._nearest.clear()

    def _add(self, members: dict[Place, dict[str, None]], digests: Iterable[str]) -> None:
        """Add keys (kernels at one shape, layout, schedule and machine) to `members`. Members shared with the shipped
        rows' predictor are copied first."""
        shared = self._shared()
        for digest in digests:
            row = self._snapshot.first_row(digest, _PLACED)
            for level, _ in _LEVELS if row["family"] != CALIBRATION else ():
                for device in (row["device"], any_of_kind(row["device"])):
                    place = (level, row[level], row["backend"], device)
                    known = members.get(place)
                    if known is None or known is shared.get(place):
                        known = members[place] = dict(known or ())
                    known[digest] = None
                    self._groups.pop(place, None)

    def _group(self, place: Place) -> RelatedKernels:
        if place not in self._groups:
            if self._shipped is not None and self._places()[place] is self._shared().get(place):
                self._snapshot.learnt_of(())  # as fitting does: before factors of queries with rows
                self._groups[place] = self._shipped._group(place)
                return self._groups[place]
            digests = sorted(self._places()[place])
            if len(digests) > _LARGEST_GROUP:  # digests are uniformly distributed: an even and repeatable sample
                digests = [digests[int(at)] for at in np.linspace(0, len(digests) - 1, _LARGEST_GROUP)]
            self._groups[place] = RelatedKernels(self._snapshot, self._regime, self.rooflines, digests, place)
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
        """Measured times, each beside its prediction from other kernels: at most 256 keys (kernels at one shape,
        layout, schedule and machine) of every family and device."""
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


def any_of_kind(device: str) -> str:
    """Device name that groups measurements of all devices of a kind: "cpu:*", "gpu:*"."""
    return device.partition(":")[0] + ANY


def _family_stats(family: str, backend: str, keys: int, errors: list[float]) -> FamilyStats:
    middle, high = (float(np.quantile(errors, at)) if errors else math.nan for at in (0.5, 0.9))
    return FamilyStats(family, backend, keys, len(errors), middle, high)
