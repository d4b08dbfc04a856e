"""Counts the failures of kernels and schedules (tuning parameters) in a cost store, per kernel and kind of failure,
with an example."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..keys.key import FORM
from ..reports.reports import StoreReport, shown
from .valid_rows import readable_tables

FAILURE_COLUMNS = ("kind", "digest", "name", "backend", "status", "stage", "message", "schedule", "time_us")
Row = dict[str, Any]


@dataclass(frozen=True, repr=False)
class Failed(StoreReport):
    """Statistics of one kind of failure of the kernels of one name.

    `keys`: number of failed keys (a key is a kernel in one shape, layout and schedule); `of`: number of tried keys;
    schedule and message are those of the latest failure.
    """

    name: str
    backend: str
    status: str
    stage: str
    keys: int
    of: int
    schedule: str
    message: str

    def lines(self) -> list[tuple[str, str]]:
        """One pair (title, text): the kernel's name; counts, status, stage, schedule and message."""
        what = f"{self.keys} of {self.of} ({self.keys / self.of:.1%}) {self.status} in {self.stage}"
        return [(shown(self.name), f"{what}, as {shown(self.schedule)}: {shown(self.message[:120])}")]


@dataclass(frozen=True, repr=False)
class FailedReport(StoreReport):
    """Failures of a store by kind, the most frequent first. `keys`: number of failed keys (kernels at one shape,
    layout, schedule and machine); `of`: number of tried keys."""

    root: str
    keys: int
    of: int
    kinds: tuple[Failed, ...] = ()

    def lines(self) -> list[tuple[str, str]]:
        """(title, text) of the totals, then of each kind."""
        return [
            *(line for line in super().lines() if line[0] != "kinds"),
            *(x for kind in self.kinds for x in kind.lines()),
        ]


def failed(root: Path) -> FailedReport:
    """Statistics of failures among all tried keys (kernels at one shape, layout, schedule and machine), from the good
    shards under a store's root.

    A key that was also timed, in another run, counts as failed: a kernel that is sometimes wrong is wrong.
    """
    tried: dict[tuple[str, str], set[str]] = {}
    kinds: dict[tuple[str, str, str, str], dict[str, Row]] = {}
    for row in _rows(root):
        kernel = row["name"].partition(FORM)[0], row["backend"]
        tried.setdefault(kernel, set()).add(row["digest"])
        if row["kind"] == "failure":
            found = kinds.setdefault((*kernel, row["status"], row["stage"]), {})
            if row["digest"] not in found or found[row["digest"]]["time_us"] < row["time_us"]:
                found[row["digest"]] = row
    made = [_failed_kind(kind, found, len(tried[kind[:2]])) for kind, found in kinds.items()]
    return FailedReport(
        root=str(root),
        keys=len({digest for found in kinds.values() for digest in found}),
        of=len({digest for digests in tried.values() for digest in digests}),
        kinds=tuple(sorted(made, key=lambda kind: (-kind.keys, kind.name, kind.backend, kind.status, kind.stage))),
    )


def _failed_kind(kind: tuple[str, str, str, str], found: dict[str, Row], of: int) -> Failed:
    latest = max(found.values(), key=lambda row: (row["time_us"], row["digest"]))
    return Failed(*kind, keys=len(found), of=of, schedule=latest["schedule"], message=latest["message"])


def _rows(root: Path) -> Iterator[Row]:
    for table in readable_tables(root):
        yield from table.select(FAILURE_COLUMNS).to_pylist()
