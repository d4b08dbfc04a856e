"""Computes the held-out accuracy of predicted kernel times, per device: how far off predictions are, and how well they
rank.

Rows are left out by three partitions, in FOLDS parts each: *kernels* (a kernel at all its shapes), *calls* (a kernel at
some shapes with all its schedules, as if it had never been measured there) and *schedules* (single schedules, while the
call's other schedules are known). All measurements of one key (a kernel at one shape, layout, schedule and machine) are
one row. For comparison, the same figures are computed for the roofline, which needs no measurements of kernels.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Any

from ..keys.key import LABEL_FIELDS, TEXT_FIELDS, TUPLE_FIELDS, KernelKey, Work
from ..price.learnt import LearntFactors, fitted
from ..price.predict import Predictor, Query
from ..price.roofline import CALIBRATION, Rooflines
from ..reports.reports import StoreReport
from .snapshot import LOADED, UNSCHEDULED, Snapshot

FOLDS = 5
ROOFLINE = "roofline"  # in place of the rows held out: all rows are predicted by the roofline
TOP = 5  # predicted best schedules, of which the fastest is compared with the fastest of all
LEAST_SCHEDULES = TOP + 3  # measured schedules with which a call counts for ranking
TIE = 0.02  # relative difference of measured times below which a pair is not ranked
MOST_SCHEDULES = 64  # schedules of a call that count for ranking: pairs grow quadratically
Row = dict[str, Any]
Times = dict[str, tuple[Row, float]]  # row and measured µs by digest
Result = tuple[Row, float, float, bool]  # row, measured and predicted µs, whether inside the interval


@dataclass(frozen=True)
class FamilyError:
    """Accuracy of predicted times on the held-out rows of one backend and kernel family.

    `mape`, `median`: mean and median relative error.
    """

    backend: str
    family: str
    rows: int
    mape: float
    median: float


@dataclass(frozen=True, repr=False)
class Accuracy(StoreReport):
    """Accuracy on one device for one partition of its rows (ROOFLINE: predicted by the roofline).

    `mape`, `median`: mean and median relative error of the predicted time. `interval`: share of times inside the
    prediction interval. `tau`: Kendall's τ over all pairs of rows drawn evenly; `tau_schedules`: over the schedules of
    one call, mean over calls. `regret`: by how much the fastest of a call's TOP predicted schedules is slower than its
    fastest, mean over calls. NaN without calls of enough schedules.
    """

    device: str
    held_out: str
    rows: int
    calls: int
    mape: float
    median: float
    interval: float
    tau: float
    tau_schedules: float
    regret: float
    families: tuple[FamilyError, ...] = ()

    @staticmethod
    def of_json(data: Mapping[str, Any]) -> Accuracy:
        """The accuracy of a document of `to_json`. Raises TypeError, ValueError or LookupError for another one."""
        numbers = {n: math.nan if data[n] is None else float(data[n])
                   for n in ("mape", "median", "interval", "tau", "tau_schedules", "regret")}  # fmt: skip
        families = tuple(
            FamilyError(str(f["backend"]), str(f["family"]), int(f["rows"]), float(f["mape"]), float(f["median"]))
            for f in data["families"]
        )
        return Accuracy(
            str(data["device"]),
            str(data["held_out"]),
            int(data["rows"]),
            int(data["calls"]),
            **numbers,
            families=families,
        )

    def lines(self) -> list[tuple[str, str]]:
        """The accuracy as printed lines (title, text): one line for all rows.

        Where `held_out` is "calls", also one for each kernel family with at least 1 % of the rows.
        """
        text = (
            f"{self.rows} rows of {self.calls} calls: MAPE {self.mape:.1%}, median {self.median:.1%}, {self.interval:.0%} in "
            f"the interval, τ {self.tau:.2f}, {self.tau_schedules:.2f} within calls, top-{TOP} regret {self.regret:.1%}"
        )
        how = self.held_out if self.held_out == ROOFLINE else f"{self.held_out} held out"
        families = [f for f in self.families if self.held_out == "calls" and 100 * f.rows >= self.rows]
        return [(f"{self.device}, {how}", text), *(
            (f"    {f.backend} {f.family}", f"{f.rows} rows: MAPE {f.mape:.1%}, median {f.median:.1%}") for f in families
        )]  # fmt: skip


@dataclass(frozen=True, repr=False)
class AccuracyReport(StoreReport):
    """Result of `accuracy`: one entry per device and partition of its rows, of the store and of the shipped rows."""

    root: str
    found: tuple[Accuracy, ...] = ()
    shipped: tuple[Accuracy, ...] = ()

    def lines(self) -> list[tuple[str, str]]:
        """The report as printed lines (title, text): the store's folder, the accuracies of its own rows, then those of
        the rows shipped with the package.
        """
        own, shipped = ([line for one in part for line in one.lines()] for part in (self.found, self.shipped))
        return [("root", self.root), *own, *([("rows shipped with the package", "")] if shipped else []), *shipped]


PARTITIONS: tuple[tuple[str, Callable[[Row], str]], ...] = (
    ("kernels", lambda row: str(row["kernel"])), ("calls", lambda row: repr(_call(row))), ("schedules", lambda row: str(row["digest"])),
)  # fmt: skip


def accuracy(root: Path, snapshot: Snapshot, shipped: Iterable[Accuracy] = ()) -> AccuracyReport:
    """Held-out accuracy of the predictions from a store's rows, in the regime that plans use (GPU cold, CPU hot).

    `shipped`: accuracies that came with shipped rows, for the report.
    """
    devices = sorted(set(snapshot.column("timing", "device")))
    return AccuracyReport(str(root), tuple(one for d in devices for one in of_device(snapshot, d)), tuple(shipped))


def of_device(snapshot: Snapshot, device: str) -> list[Accuracy]:
    """Held-out accuracy of predictions on one device, for each of the PARTITIONS (by which rows are left out), then
    of its roofline; empty with fewer than FOLDS rows."""
    regime = "hot" if device.startswith("cpu") else "cold"
    rows = [row for row in _rows(snapshot) if row["device"] == device and row["regime"] == regime]
    times: Times = {}
    for row in rows:
        if row["family"] != CALIBRATION and (m := snapshot.measurement(row["digest"], regime)) is not None:
            times[row["digest"]] = row, m.us
    if len(times) < FOLDS:
        return []
    known = [_summary(device, name, _held_out(device, regime, rows, times, part_of)) for name, part_of in PARTITIONS]
    rooflines = Rooflines(snapshot, regime)
    bounds = [(row, us, rooflines.bound_us(row, _work(row)), False)
              for row, us in times.values()]  # fmt: skip
    return [*known, _summary(device, ROOFLINE, bounds)]


def _held_out(
    device: str, regime: str, rows: Sequence[Row], times: Times, part_of: Callable[[Row], str]
) -> list[Result]:  # fmt: skip
    """Each row with its measured and predicted µs, and whether the time is inside the interval."""
    results: list[Result] = []
    for fold in range(FOLDS):
        out = {d for d, (row, _) in times.items() if _fold(part_of(row)) == fold}
        kept = Snapshot()
        kept.extend("timing", _columns(row for row in rows if row["digest"] not in out))
        kept.learnt = _learnt(kept, regime, device)
        asked = sorted(out)
        queries = [Query(_key(times[d][0]), _work(times[d][0])) for d in asked]
        for d, price in zip(asked, Predictor(kept, regime).price(queries), strict=True):
            row, us = times[d]
            results.append((row, us, price.us, price.low <= us <= price.high))
    return results


def _learnt(snapshot: Snapshot, regime: str, device: str) -> LearntFactors:
    model = fitted(snapshot, regime, device)
    return LearntFactors({} if model is None else {device: model})


def _summary(device: str, held_out: str, results: Sequence[Result]) -> Accuracy:
    errors = sorted(abs(predicted / us - 1) for _, us, predicted, _ in results)
    calls: dict[Any, list[tuple[float, float]]] = defaultdict(list)
    families: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row, us, predicted, _ in results:
        families[row["backend"], row["family"]].append(abs(predicted / us - 1))
        if row["schedule"] not in UNSCHEDULED:
            calls[_call(row)].append((us, predicted))
    ranked = [pairs for pairs in calls.values() if len(pairs) >= LEAST_SCHEDULES]
    step = max(1, len(results) // 500)
    every = sorted(((us, predicted) for _, us, predicted, _ in results), key=lambda p: p[0])[::step]
    return Accuracy(
        device, held_out, len(results), len({_call(row) for row, *_ in results}), sum(errors) / len(errors),
        errors[len(errors) // 2], sum(inside for *_, inside in results) / len(results), tau(every),
        _mean([tau(_evenly(pairs)) for pairs in ranked]), _mean([regret(pairs) for pairs in ranked]),
        tuple(FamilyError(*kind, len(e), sum(e) / len(e), float(median(e))) for kind, e in sorted(families.items())),
    )  # fmt: skip


def tau(pairs: Sequence[tuple[float, float]]) -> float:
    """Kendall's τ of (measured, predicted) values.

    Pairs whose measured values differ by at most TIE do not count; NaN if no pair is left.
    """
    signs = [
        (a[1] < b[1]) - (a[1] > b[1]) if a[0] < b[0] else (a[1] > b[1]) - (a[1] < b[1])
        for a, b in combinations(pairs, 2) if abs(a[0] - b[0]) > TIE * min(a[0], b[0])
    ]  # fmt: skip
    return _mean(signs)


def regret(pairs: Sequence[tuple[float, float]]) -> float:
    """Regret of a prediction: measured time of the fastest among the TOP best predicted, over the fastest of all,
    minus 1.

    `pairs` are (measured, predicted) times.
    """
    top = sorted(pairs, key=lambda p: p[1])[:TOP]
    return min(us for us, _ in top) / min(us for us, _ in pairs) - 1


def _evenly(pairs: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    return sorted(pairs)[:: math.ceil(len(pairs) / MOST_SCHEDULES)]


def _mean(values: Sequence[float]) -> float:
    known = [v for v in values if not math.isnan(v)]
    return sum(known) / len(known) if known else math.nan


def _rows(snapshot: Snapshot) -> list[Row]:
    names = LOADED["timing"]
    return [dict(zip(names, row)) for row in zip(*(snapshot.column("timing", name) for name in names))]


def _columns(rows: Iterable[Row]) -> dict[str, list[Any]]:
    kept = list(rows)
    return {name: [row[name] for row in kept] for name in LOADED["timing"]}


def _call(row: Row) -> tuple[str, ...]:
    """Key of a kernel at its shapes and strides, without its schedule."""
    return tuple(row[name] for name in ("kernel", "shapes", "dtypes", "strides"))


def _fold(text: str) -> int:
    return blake2b(text.encode(), digest_size=2).digest()[0] % FOLDS


def _work(row: Row) -> Work:
    return Work(row["flops"], row["bytes"])


def _key(row: Row) -> KernelKey:
    """Kernel key built from the columns that are kept in memory, for predictions only: its digest is not the stored
    one."""
    texts = {name: row.get(name, "") for name in TEXT_FIELDS + LABEL_FIELDS}
    return KernelKey(**texts, **{name: json.loads(row.get(name) or "[]") for name in TUPLE_FIELDS})


__all__ = ["ROOFLINE", "Accuracy", "AccuracyReport", "FamilyError", "accuracy", "of_device", "regret", "tau"]
