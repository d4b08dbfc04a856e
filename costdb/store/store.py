"""Keeps the cost store: durable rows in Parquet shards, queried through an in-memory snapshot."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from ... import cache_folder, settings
from ...errors import CostStoreError, warned
from ...processes.forks import Lock
from ...writing.files import named_path, write_bytes
from ..keys.key import KernelKey
from ..price.roofline import CALIBRATION
from ..reports.reports import Ack, CheckReport, CompactReport, CostStoreWarning, MergeReport, StoreStats
from . import cache, kept_rows, maintenance, shards, starter, team
from .schema import FORMAT, Row, checked, rows_with, to_table
from .shipped_rows import ShippedRows, shipped_rows
from .snapshot import LOADED, AccuracyRecord, FailureRecord, Snapshot
from .starter import Devices
from .valid_rows import exported_tables

if TYPE_CHECKING:
    import pyarrow as pa

    from ..price.predict import Predictor, Price, Query

KeyOrDigest: TypeAlias = KernelKey | str


def default_root() -> Path:
    """Folder of the default store: the setting `costdb`, otherwise a folder in the cache folder."""
    configured = settings.current().costdb
    return Path(os.path.expanduser(configured)) if configured else cache_folder.home() / "costdb"


class Store:
    """Measured costs under a folder, which any number of processes may use at once.

    `frozen=True` fixes the visible rows at the first read: rows added later, including this object's own, are stored
    but not used, so that a deterministic run has constant prices. `wait_s`: longest wait in seconds for another process
    that holds the cache, before the shards are read into memory instead. `starter`: returns the devices whose starter
    rows (starter.py) are used where the store has no rows of its own; None: no starter rows. Nothing is read until the
    first query.
    """

    def __init__(
        self, root: str | Path | None = None, *, frozen: bool = False, wait_s: float = 5.0, starter: Devices | None = None
    ) -> None:  # fmt: skip
        self.root = named_path(root) if root is not None else default_root()
        try:
            other = self.root.exists() and not self.root.is_dir()
        except OSError as error:  # such as a home of another user
            raise CostStoreError(
                f"the cost store cannot be reached: {error.strerror}", where=str(self.root),
                hint="name another folder, or set TENSOR_GRAPHS_HOME",
            ) from None  # fmt: skip
        if other:
            raise CostStoreError("the cost store is not a folder", where=str(self.root), hint="name a folder")
        self.frozen, self.wait_s, self._starter = frozen, wait_s, starter
        self._loaded: cache.LoadedCache | None = None
        self._shipped: ShippedRows | None = None
        self._state = "ok"
        self._names: set[str] = set()
        self._frozen_id = ""
        self._pending: list[pa.Table] = []
        self._predictors: dict[str, Predictor] = {}
        self._lock = Lock()

    def __repr__(self) -> str:
        known = "not read yet" if self._loaded is None else f"{len(self._loaded.snapshot)} rows"
        return f"Store({str(self.root)!r}, {known})"

    # Reading

    def failures(self, keys: Iterable[KeyOrDigest]) -> dict[str, list[FailureRecord]]:
        """Recorded failures of keys (kernels at one shape, layout, schedule and machine) by digest, oldest first; only
        keys that have any."""
        snapshot = self.snapshot
        found = {digest: snapshot.failures(digest) for digest in map(_digest, keys) if snapshot.has(digest, "failure")}
        return {digest: records for digest, records in found.items() if records}

    def accuracies(self, keys: Iterable[KeyOrDigest]) -> dict[str, list[AccuracyRecord]]:
        """Recorded accuracy of keys (kernels at one shape, layout, schedule and machine) by digest, oldest first; only
        keys that have any."""
        found = {digest: self.snapshot.accuracies(digest) for digest in map(_digest, keys)}
        return {digest: records for digest, records in found.items() if records}

    def samples(self, keys: Iterable[KeyOrDigest]) -> list[tuple[str, str, str, int, list[float]]]:
        """Every durable timing of some keys (kernels at one shape, layout, schedule and machine): (digest, regime, run,
        time in µs since 1970, samples in µs). Slow."""
        return cache.samples(self.root, [_digest(key) for key in keys])

    def price(self, queries: Sequence[Query], *, regime: str = "hot") -> list[Price]:
        """A price for every query, with "hot" or "cold" caches: measured, predicted or bound (`Predictor.price`)."""
        return self.predictor(regime).price(queries)

    def predictor(self, regime: str = "hot") -> Predictor:
        """The predictor fitted to the visible rows of a regime: "hot" or "cold" caches."""
        from ..price.predict import Predictor

        with self._lock:
            if regime not in self._predictors:
                snapshot, shipped = self.snapshot, self._shipped
                alone = None if shipped is None else shipped.predictor(regime)
                self._predictors[regime] = Predictor(snapshot, regime, alone)
            return self._predictors[regime]

    def prepare(self, regime: str = "hot") -> None:
        """Load the rows and what predictions in a regime need, in advance; may run in another thread."""
        with self._lock:
            self.predictor(regime).prepare()

    @property
    def snapshot(self) -> Snapshot:
        """The visible rows; loaded on first use."""
        return self._load().snapshot

    def calibrated(self, device: str) -> bool:
        """Whether the store has calibrated limits of a device."""
        return device in self.predictor("cold").rooflines.measured()

    def snapshot_id(self) -> str:
        """Digest (32 hex digits) of the set of shards (and rows not yet on disk) behind all answers."""
        self._load()
        return self._frozen_id if self.frozen else self._current_id()

    def _current_id(self) -> str:
        state = blake2b("\n".join(sorted(self._names)).encode("utf-8", "backslashreplace"), digest_size=16)
        for table in self._pending:
            state.update(shards.encode(table))
        return state.hexdigest()

    def refresh(self) -> None:
        """Make rows added by other processes visible. No effect on a frozen store that has been read."""
        with self._lock:
            if not (self.frozen and self._loaded is not None):
                self._loaded = None
                self._predictors.clear()

    def _load(self) -> cache.LoadedCache:
        with self._lock:
            if self._loaded is None:
                self._loaded = self._read()
                self._add_starter(self._loaded.snapshot)
                for table in self._pending:
                    self._loaded.snapshot.extend_table(table)
                self._names = {*self._loaded.shards, *self._add_team(self._loaded.snapshot)}
                self._frozen_id = self._current_id() if self.frozen else ""
            return self._loaded

    def _read(self) -> cache.LoadedCache:
        if not self._pending and not self.root.exists():  # the first row that is stored makes it
            return cache.LoadedCache(Snapshot(), ())
        shards.clean(self.root)
        file: Path | None = None
        try:
            file = cache.private_folder(self.root) / f"{FORMAT}.duckdb"
            loaded = kept_rows.load(self.root, file, self.wait_s)
            self._state = "ok"
        except (cache.CacheBusy, cache.CacheUnusable) as reason:
            self._state = str(reason)
            self._warn(f"{reason}; its shards are read into memory")
            loaded = cache.load_memory(self.root, file)
        if loaded.set_aside:
            self._warn(f"the cache was damaged or of another version: kept as {loaded.set_aside.name}, and rebuilt")
        if loaded.bad:
            self._warn(f"{len(loaded.bad)} bad shard(s) set aside; `tensor-graphs db check` names them")
        return loaded

    def _add_starter(self, snapshot: Snapshot) -> None:
        """Add the starter rows of the devices in question; a damaged file is left out with a warning."""
        folder = starter.folder_in_use() if self._starter is not None else None
        self._shipped = None
        if folder is not None and self._starter is not None:
            self._shipped = shipped_rows(starter.files_for(folder, self._starter()))
            snapshot.include(self._shipped.snapshot)
            for warning in self._shipped.warnings:
                self._warn(warning)

    def _add_team(self, snapshot: Snapshot) -> tuple[str, ...]:
        """Add the rows of the team's store that the setting `team` names; returns the names of their shards.

        If it cannot be read, there is a warning.
        """
        named = settings.current().team if self._starter is not None else ""
        if not named:
            return ()
        try:
            found, names, warning = team.rows_of(named, self.wait_s, refresh=not self.frozen)
        except CostStoreError as error:
            self._warn(error.message)
            return ()
        if warning:
            self._warn(warning)
        snapshot.extend("timing", {name: found.column("timing", name) for name in LOADED["timing"]})
        return names

    def _warn(self, message: str) -> None:
        warned(f"cost store {self.root}: {message}", CostStoreWarning)

    # Writing

    def add(self, rows: Iterable[Row]) -> Ack:
        """Store rows; returns how many were kept, which were refused, and whether they are `durable` (survive a power
        loss).

        Invalid rows (NaN or impossible latencies, …) are skipped and counted. If the disk is full or read-only, rows
        are kept in memory with a warning and written with the next `add` or `flush` that succeeds.
        """
        given = list(rows)
        if not given:
            return Ack(0)
        with self._lock:
            table, skipped = checked(to_table(given))
            if not table.num_rows:
                return Ack(0, dict(skipped))
            if self._loaded is not None and not self.frozen:
                self._loaded.snapshot.extend_table(table)
                self._inform_predictors(given)
            self._pending.append(table)
            names = self.flush()
            return Ack(table.num_rows, dict(skipped), not self._pending, names)

    def _inform_predictors(self, rows: Sequence[Row]) -> None:
        """Add rows to fitted predictors; new calibration rows change every bound and discard the predictors."""
        timed = {row.key.digest: row.key.family for row in rows if row.kind == "timing"}
        if CALIBRATION in timed.values():
            self._predictors.clear()
        known = {digest for digest in timed if self._loaded and self._loaded.snapshot.has(digest)}
        for predictor in self._predictors.values():
            predictor.learn(known)

    def flush(self) -> tuple[str, ...]:
        """Write rows that could not be written before; returns the names of the new shards, warns if it fails again."""
        import pyarrow as pa

        with self._lock:
            if not self._pending:
                return ()
            try:
                names = self._write(pa.concat_tables(self._pending))
            except OSError as error:
                kept = sum(table.num_rows for table in self._pending)
                self._warn(f"{error.strerror or error}: {kept} row(s) are kept in memory only")
                return ()
            self._pending.clear()
            return names

    def _write(self, table: pa.Table) -> tuple[str, ...]:
        """Write one shard per device, so that a device's folder can be shared or deleted."""
        names = []
        for device, part in _by_device(table).items():
            names.append(shards.write(self.root, device, part).name.removesuffix(".parquet"))
        self._names.update(names)
        return tuple(names)

    # Keeping (maintenance.py)

    def merge(self, other_root: str | Path) -> MergeReport:
        """Copy the good shards of another store; bad ones are counted and left in place. Returns the counts.

        Raises CostStoreError if there is no folder `other_root`.
        """
        report = maintenance.merge(self.root, Path(other_root), self._write)
        self.refresh()
        return report

    def compact(self) -> CompactReport:
        """Merge the fully valid shards of each device into one; returns shards and rows before and after.

        The old shards are deleted once the new one is on disk. Raises CostStoreError if the store cannot be written;
        nothing is lost then.
        """
        report = maintenance.compact(self.root, self._write)
        self.refresh()
        return report

    def check(self) -> CheckReport:
        """Report of verifying every shard: bad ones are quarantined, stale temporary files removed, and the cache
        tested."""
        report = maintenance.check(self.root)
        kept_rows.forget()  # the cache itself is tested
        self.refresh()
        self._load()
        return replace(report, cache=self._state)

    def export(self, path: str | Path) -> int:
        """Write all rows as one Parquet file, replaced atomically; returns how many.

        Raises CostStoreError if a shard is bad (run `check` first), UnwritableError if the file cannot be written.
        """
        table = maintenance.deduplicated([to_table(()), *exported_tables(self.root), *self._pending])
        write_bytes(path, shards.encode(table))
        return int(table.num_rows)

    def stats(self) -> StoreStats:
        """Contents of the store, the rooflines in use, and the held-out prediction error per family."""
        loaded = self._load()
        snapshot, predictor = loaded.snapshot, self.predictor()
        devices = Counter(snapshot.first_row(digest)["device"] for digest in snapshot.digests())
        return StoreStats(
            root=str(self.root),
            snapshot_id=self.snapshot_id(),
            shards=len(self._names),
            rows={kind: len(snapshot.column(kind, "digest")) for kind in LOADED},
            keys=sum(devices.values()),
            devices=dict(sorted(devices.items())),
            rooflines=predictor.rooflines.measured(),
            not_durable=sum(table.num_rows for table in self._pending),
            families=predictor.held_out(),
        )


def _digest(key: KeyOrDigest) -> str:
    return key if isinstance(key, str) else key.digest


def _by_device(table: pa.Table) -> Mapping[str, pa.Table]:
    return {device: rows_with(table, "device", device) for device in sorted(set(table.column("device").to_pylist()))}
