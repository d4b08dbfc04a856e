"""Holds the rows of the cost store (timings, accuracies, failures of kernels) in memory, as plain columns.

A lookup finds the rows of a key by its digest (`KernelKey.digest`), and returns a summary of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ..keys.key import KernelKey, Work
from ..price.gaussian_process import Array
from ..price.learnt import LearntFactors
from .schema import REGIMES, SHIPPED, TEAM, rows_with, run_id

if TYPE_CHECKING:
    import pyarrow as pa

Columns: TypeAlias = Mapping[str, Sequence[Any]]

LABELS = ("kernel", "name", "family", "backend", "device", "dtypes", "schedule", "source", "toolchain", "shapes",
          "strides")  # fmt: skip
LOADED = {
    "timing": ("digest", "regime", "run", "time_us", "median_us", "mad_us", "n", "threads", "flops", "bytes", *LABELS),
    "accuracy": ("digest", "run", "time_us", "reference", "rel_fro", "max_abs", "max_rel", "max_ulp", "seeds"),
    "failure": ("digest", "kernel", "schedule", "shapes", "run", "time_us", "status", "stage", "message"),
}
"""The columns of each kind of row kept in memory. Samples stay in the shards."""

UNSCHEDULED = ("", "[]", '""')  # column values of kernels without a schedule
_MAD_TO_SIGMA = 1.4826  # for a normal distribution
_CONTRADICTION = 2.0


@dataclass(frozen=True, slots=True)
class Measurement:
    """Summary of a key's timings: the median over runs of each run's median.

    `low`..`high` is the spread in µs (quartiles over runs if there are four or more, otherwise the robust deviation of
    the median), `n` the number of runs, `samples` the total number of samples, `own` whether this process measured the
    key (a kernel at one shape, layout, schedule and machine) too: if other runs contradict its own by more than a
    factor 2, only its own count. `shipped`: only rows of other machines are known, from a team's store or, if it has
    none, from the package; they do not count beside rows of this store. `alone`: only one run of a team's store is
    known.
    """

    us: float
    low: float
    high: float
    n: int
    samples: int
    regime: str
    own: bool = False
    shipped: bool = False
    alone: bool = False


@dataclass(frozen=True, slots=True)
class FailureRecord:
    """One recorded failure of a key (a kernel at one shape, layout, schedule and machine)."""

    status: str
    stage: str
    message: str
    run: str
    time_us: int


@dataclass(frozen=True, slots=True)
class AccuracyRecord:
    """One recorded error of a key (a kernel at one shape, layout, schedule and machine) against `reference`."""

    rel_fro: float
    max_abs: float
    max_rel: float
    max_ulp: float
    seeds: int
    reference: str
    run: str
    time_us: int


class Snapshot:
    """In-memory copy of the store's rows, append-only. Answers do not depend on the order in which rows arrived.

    `learnt`: models that came with shipped rows, for predictions.
    """

    def __init__(self) -> None:
        self.learnt = LearntFactors()
        self._columns: dict[str, dict[str, list[Any]]] = {
            kind: {name: [] for name in names} for kind, names in LOADED.items()
        }
        self._index: dict[str, dict[str, list[int]]] = {kind: {} for kind in LOADED}
        self._memo: dict[tuple[str, str], Measurement | None] = {}
        self._learnt_of: dict[str, float] = {}
        self._learnt_rows = 0  # timing rows whose keys are in `_learnt_of`
        self._included: Snapshot | None = None
        self._own: dict[str, None] = {}  # keys with timings that are not in the included snapshot
        self._tuned: dict[str, dict[str, dict[str, set[str]]]] = {}  # kernel, shapes, schedule: digests

    def extend(self, kind: str, columns: Columns) -> None:
        """Append rows of one kind, given as columns."""
        held, index = self._columns[kind], self._index[kind]
        start = len(held["digest"])
        for name in LOADED[kind]:
            held[name].extend(columns[name])
        if kind == "timing":
            self._own.update(dict.fromkeys(columns["digest"]))
        for row, digest in enumerate(held["digest"][start:], start):
            index.setdefault(digest, []).append(row)
            if "schedule" in held and held["schedule"][row] not in UNSCHEDULED:
                body = self._tuned.setdefault(held["kernel"][row], {})
                body.setdefault(held["shapes"][row], {}).setdefault(held["schedule"][row], set()).add(digest)
            if self._memo:
                self._forget(digest)

    def extend_table(self, table: pa.Table) -> None:
        """Append all rows of a table."""
        for kind, names in LOADED.items():
            part = rows_with(table, "kind", kind)
            if part.num_rows:
                self.extend(kind, {name: part.column(name).to_pylist() for name in names})

    def include(self, other: Snapshot) -> None:
        """Append the rows and models of another snapshot, to which no rows will be added any more.

        The other snapshot computes the factors of its models for its rows, once for all snapshots that include it. At
        most one snapshot can be included.
        """
        own = dict(self._own)
        if len(self):
            for kind in LOADED:
                self.extend(kind, other._columns[kind])
        else:
            self._take_rows(other)
        self._own = own
        self.learnt.models.update(other.learnt.models)
        self._included = other

    def copy(self) -> Snapshot:
        """A snapshot with the same rows, to which rows can be added; the same included snapshot and models count."""
        found = Snapshot()
        found._take_rows(self)
        found._own, found._included = dict(self._own), self._included
        found.learnt.models.update(self.learnt.models)
        return found

    def _take_rows(self, other: Snapshot) -> None:
        """Have the rows of another snapshot, in place of the own ones: faster than to add them."""
        self._columns = {kind: {n: values[:] for n, values in held.items()} for kind, held in other._columns.items()}
        self._index = {kind: {key: rows[:] for key, rows in index.items()} for kind, index in other._index.items()}
        self._tuned = {
            kernel: {shapes: {chosen: set(keys) for chosen, keys in found.items()} for shapes, found in body.items()}
            for kernel, body in other._tuned.items()
        }
        self._memo.clear()

    def not_included(self) -> list[str]:
        """The keys (kernels at one shape, layout, schedule and machine) with timings that are not in the included
        snapshot."""
        return list(self._own)

    def _forget(self, digest: str) -> None:
        for regime in REGIMES:
            self._memo.pop((digest, regime), None)

    def __len__(self) -> int:
        return sum(len(columns["digest"]) for columns in self._columns.values())

    def column(self, kind: str, name: str) -> list[Any]:
        """All values of the column `name` of the rows of a kind ("timing", "accuracy" or "failure"), in arrival
        order."""
        return self._columns[kind][name]

    def digests(self, kind: str = "timing") -> Iterable[str]:
        """The distinct keys (kernels at one shape, layout, schedule and machine) that have rows of this kind."""
        return self._index[kind].keys()

    def kernels(self) -> set[str]:
        """Structural hashes (the key field `kernel`) of the kernels that were timed or failed, in any shape and
        schedule."""
        return {name for kind in ("timing", "failure") for name in self._columns[kind]["kernel"]}

    def tuned(self, kernel: str) -> Mapping[str, Mapping[str, set[str]]]:
        """Timed or failed schedules of the kernel with the structural hash `kernel`: shapes -> schedule -> digests of
        keys (all texts)."""
        return self._tuned.get(kernel, {})

    def has(self, digest: str, kind: str = "timing") -> bool:
        """Whether the key with this digest (a kernel at one shape, layout, schedule and machine) has rows of the given
        kind."""
        return digest in self._index[kind]

    def first_row(self, digest: str, names: Sequence[str] = LOADED["timing"]) -> dict[str, Any]:
        """Columns `names` of one timing row of the key (kernel at one shape, layout, schedule and machine) with this
        digest; which row it is does not depend on the order of arrival."""
        rows, columns = self._index["timing"][digest], self._columns["timing"]
        row = rows[0] if len(rows) == 1 else self._canonical(rows)
        return {name: columns[name][row] for name in names}

    def _canonical(self, rows: list[int]) -> int:
        """Index of the row whose labels and work count if the rows of a key disagree: the newest one."""
        columns = self._columns["timing"]
        return max(rows, key=lambda row: (columns["time_us"][row], *(str(column[row]) for column in columns.values())))

    def learnt_of(self, digests: Sequence[str]) -> Array:
        """log(time / roofline) that the learnt models predict for keys (kernels at one shape, layout, schedule and
        machine) with timings; computed for all of them at once."""
        if not self.learnt.models:
            return np.zeros(len(digests))
        if self._learnt_rows != (count := len(self._columns["timing"]["digest"])):
            if self._included is not None:
                for digest, factor in self._included_factors(self._included).items():
                    self._learnt_of.setdefault(digest, factor)
            lacking = [digest for digest in self._index["timing"] if digest not in self._learnt_of]
            rows = [self.first_row(digest) for digest in lacking]
            found = self.learnt.of(rows, [Work(row["flops"], row["bytes"]) for row in rows])
            self._learnt_of.update(zip(lacking, found.tolist()))
            self._learnt_rows = count
        return np.array([self._learnt_of[digest] for digest in digests])

    def _included_factors(self, included: Snapshot) -> dict[str, float]:
        """Learnt factors of the keys (kernels at one shape, layout, schedule and machine) of the included snapshot that
        have no other rows."""
        included.learnt_of(())
        changed = set(self.not_included())
        return {digest: factor for digest, factor in included._learnt_of.items() if digest not in changed}

    def learnt_factors(self, keys: Sequence[KernelKey], work: Sequence[Work]) -> Array:
        """log(time / roofline) that the learnt models predict for keys with or without rows, given their work; zeros
        without a model. Each is computed once."""
        if not self.learnt.models:
            return np.zeros(len(keys))
        lacking = {key.digest: i for i, key in enumerate(keys) if key.digest not in self._learnt_of}
        if lacking:
            found = self.learnt.of([keys[i].columns for i in lacking.values()], [work[i] for i in lacking.values()])
            self._learnt_of.update(zip(lacking, found.tolist()))
        return np.array([self._learnt_of[key.digest] for key in keys])

    def measurement(self, digest: str, regime: str) -> Measurement | None:
        """The robust summary of the timings, in one regime ("hot" or "cold" caches), of the key (kernel at one shape,
        layout, schedule and machine) with this digest; None if there are none."""
        memo = (digest, regime)
        if memo not in self._memo:
            self._memo[memo] = self._summarise(digest, regime)
        return self._memo[memo]

    def _summarise(self, digest: str, regime: str) -> Measurement | None:
        columns = self._columns["timing"]
        regimes = columns["regime"]
        rows = [row for row in self._index["timing"].get(digest, ()) if regimes[row] == regime]
        if not rows:
            return None
        medians, mads, counts, runs = (columns[name] for name in ("median_us", "mad_us", "n", "run"))
        if len(rows) > 1:
            rows = _nearest(rows, runs)
            rows = self._believed(rows, runs, medians)
        by_run = _by_run(rows, runs, medians)
        per_run = sorted(by_run.values())
        low, middle, high = _spread(per_run, mads[rows[0]] if len(rows) == 1 else median(mads[row] for row in rows))
        return Measurement(
            us=middle,
            low=low,
            high=high,
            n=len(per_run),
            samples=sum(int(counts[row]) for row in rows),
            regime=regime,
            own=run_id() in by_run,
            shipped=any(run == SHIPPED or run.startswith(TEAM) for run in by_run),
            alone=len(by_run) == 1 and next(iter(by_run)).startswith(TEAM),
        )

    @staticmethod
    def _believed(rows: list[int], runs: list[str], medians: list[float]) -> list[int]:
        """All rows, or only this process' own if these contradict the rest by more than _CONTRADICTION."""
        own = [row for row in rows if runs[row] == run_id()]
        if not own or len(own) == len(rows):
            return rows
        here, everywhere = (median(_by_run(some, runs, medians).values()) for some in (own, rows))
        return own if not 1 / _CONTRADICTION <= here / everywhere <= _CONTRADICTION else rows

    def failures(self, digest: str) -> list[FailureRecord]:
        """The failures, oldest first, of the key (kernel at one shape, layout, schedule and machine) with
        this digest."""
        found = [
            FailureRecord(row["status"], row["stage"], row["message"], row["run"], int(row["time_us"]))
            for row in self._rows("failure", digest)
        ]
        return sorted(found, key=lambda record: (record.time_us, record.run, record.status))

    def accuracies(self, digest: str) -> list[AccuracyRecord]:
        """The measured errors, oldest first, of the key (kernel at one shape, layout, schedule and machine) with this
        digest."""
        found = [
            AccuracyRecord(
                rel_fro=float(row["rel_fro"]),
                max_abs=float(row["max_abs"]),
                max_rel=float(row["max_rel"]),
                max_ulp=float(row["max_ulp"]),
                seeds=int(row["seeds"]),
                reference=row["reference"],
                run=row["run"],
                time_us=int(row["time_us"]),
            )
            for row in self._rows("accuracy", digest)
        ]
        return sorted(found, key=lambda record: (record.time_us, record.run, record.rel_fro))

    def _rows(self, kind: str, digest: str) -> list[dict[str, Any]]:
        columns = self._columns[kind]
        return [{name: values[row] for name, values in columns.items()} for row in self._index[kind].get(digest, ())]


def _nearest(rows: list[int], runs: list[str]) -> list[int]:
    """The rows of this store, else those of a team's store, else those of the package."""
    elsewhere = [row for row in rows if runs[row] != SHIPPED]
    return [row for row in elsewhere if not runs[row].startswith(TEAM)] or elsewhere or rows


def _by_run(rows: list[int], runs: list[str], medians: list[float]) -> dict[str, float]:
    """Run -> median, so that a run with many rows has the same weight as the others."""
    if len(rows) == 1:
        return {runs[rows[0]]: medians[rows[0]]}
    found: dict[str, list[float]] = {}
    for row in rows:
        found.setdefault(runs[row], []).append(medians[row])
    return {run: median(values) for run, values in found.items()}


def _spread(per_run: list[float], mad: float) -> tuple[float, float, float]:
    """(low, middle, high) of sorted run medians; `mad` is the typical deviation inside a run."""
    count = len(per_run)
    middle = per_run[0] if count == 1 else median(per_run)
    if count >= 4:
        return per_run[count // 4], middle, per_run[-1 - count // 4]
    deviation = _MAD_TO_SIGMA * mad
    return max(min(per_run[0], middle - deviation), middle / 10), middle, max(per_run[-1], middle + deviation)
