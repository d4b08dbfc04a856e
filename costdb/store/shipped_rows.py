"""Keeps the starter rows that a process has read, and what predictions compute from them alone.

A process reads a starter file once, and not at each optimization. The rows, factors of the learnt models and fitted
groups of relatives are the same in every store that uses the same files, and do not change. Each store has a snapshot
and predictors of its own, and takes from here what its own rows do not affect (`Snapshot.include`, `Predictor`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from ...lru_map import LruMap
from ...plain import file_identity
from ...processes.forks import Lock
from . import shards, starter
from .snapshot import Snapshot

if TYPE_CHECKING:
    from ..price.predict import Predictor

MOST_KEPT = 4  # sets of files; a process needs one for each set of devices that it optimizes for

Stamp: TypeAlias = tuple[str, tuple[int, ...]]  # path, `file_identity`; () if there is no file


class ShippedRows:
    """Rows and models of some starter files, never extended, and predictors from these alone.

    `warnings`: a text for each file that cannot be used. `snapshot` and predictors may be read by several threads.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        self.snapshot = Snapshot()
        self.warnings: list[str] = []
        self._predictors: dict[str, Predictor] = {}
        self._lock = Lock()
        for path in files:
            try:
                table, model = starter.read(path), starter.read_model(path)
                self.snapshot.extend_table(table)
                if model is not None and table.num_rows:
                    self.snapshot.learnt.models[table.column("device")[0].as_py()] = model
            except (shards.BadShard, OSError) as error:
                self.warnings.append(f"the starter rows in {path} cannot be used: {error}")

    def predictor(self, regime: str) -> Predictor:
        """The predictor fitted to these rows alone in a regime: "hot" or "cold" caches."""
        from ..price.predict import Predictor

        with self._lock:
            if regime not in self._predictors:
                self._predictors[regime] = Predictor(self.snapshot, regime)
                self._predictors[regime].learn(())  # sorts the rows into groups, before other threads may
            return self._predictors[regime]


_kept: LruMap[tuple[Stamp, ...], ShippedRows] = LruMap(MOST_KEPT)
_lock = Lock()


def shipped_rows(files: Sequence[Path]) -> ShippedRows:
    """The rows of starter files, read again only if a file has changed or could not be used before."""
    with _lock:
        found = tuple(_stamp(path) for file in files for path in (file, file.with_suffix(starter.MODEL)))
        rows = _kept.get(found) or ShippedRows(files)
        if not rows.warnings:
            _kept[found] = rows
        return rows


def _stamp(path: Path) -> Stamp:
    try:
        return str(path), file_identity(path)
    except OSError:
        return str(path), ()


__all__ = ["ShippedRows", "shipped_rows"]
