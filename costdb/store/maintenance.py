"""Maintains the shards of a cost store: copies those of another store, merges small ones, verifies all."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import CostStoreError
from ..reports.reports import CheckReport, CompactReport, MergeReport
from . import cache, shards
from .arrow_arrays import array_of
from .schema import FORMAT, checked

if TYPE_CHECKING:
    import pyarrow as pa

    Write = Callable[[pa.Table], tuple[str, ...]]  # writes rows as new shards, and returns their names


def merge(root: Path, other: Path, write: Write) -> MergeReport:
    """Copy the good shards of the store `other`; bad ones are counted and left in place. Returns the counts.

    Raises CostStoreError if there is no folder `other`.
    """
    if not other.is_dir():
        raise CostStoreError("there is no store to merge", where=str(other), hint="name the root of a store")
    have = {shard.name for shard in shards.find(root)}
    copied, present, bad, skipped = 0, 0, {}, Counter[str]()
    for shard in shards.find(other):
        if shard.name in have:
            present += 1
            continue
        try:
            table, refused = checked(shards.read(shard.path))
        except (shards.BadShard, OSError) as error:
            bad[shard.name] = str(error) if isinstance(error, shards.BadShard) else "cannot be read"
            continue
        _take_over(root, shard, table, write, whole=not refused)
        skipped.update(refused)
        copied += 1
    return MergeReport(copied, present, bad, dict(skipped))


def _take_over(root: Path, shard: shards.ShardFile, table: pa.Table, write: Write, *, whole: bool) -> None:
    """Copy a fully valid shard of one device unchanged; otherwise write its valid rows as new shards."""
    devices = set(table.column("device").to_pylist())
    try:
        if whole and len(devices) == 1:
            slug = shards.device_slug(devices.pop())
            shards.copy(shard, root / FORMAT / f"device={slug}" / _date(shard))
        else:
            write(table)
    except OSError as error:
        raise CostStoreError(f"the merge stopped: {error.strerror or error}", where=str(root)) from error


def compact(root: Path, write: Write) -> CompactReport:
    """Merge the fully valid shards of each device into one; returns shards and rows before and after.

    The old shards are deleted once the new one is on disk. Raises CostStoreError if the store cannot be written;
    nothing is lost then.
    """
    from filelock import FileLock

    try:
        with FileLock(cache.private_folder(root) / "compact.lock"):
            return _compact(root, write)
    except (OSError, cache.CacheUnusable) as error:
        raise CostStoreError(f"the store cannot be compacted: {error}", where=str(root)) from error


def _compact(root: Path, write: Write) -> CompactReport:
    before, tables = [], []
    for shard in shards.find(root):
        try:
            table, refused = checked(shards.read(shard.path))
        except (shards.BadShard, OSError):
            continue
        if not refused:  # rows refused here may be valid where the clock is right: keep the file
            tables.append(table)
            before.append(shard)
    rows_before = sum(table.num_rows for table in tables)
    if len(before) < 2:
        return CompactReport(len(before), len(before), rows_before, rows_before)
    table = deduplicated(tables)
    kept = set(write(table))
    for shard in before:
        if shard.name not in kept:
            shard.path.unlink(missing_ok=True)
            _remove_if_empty(shard.path.parent)
    return CompactReport(len(before), len(kept), rows_before, table.num_rows)


def check(root: Path) -> CheckReport:
    """Report of verifying every shard: bad ones are quarantined, and stale temporary files removed; `cache`
    is left empty."""
    bad, skipped = {}, Counter[str]()
    good = rows = 0
    for shard in shards.find(root):
        try:
            table, refused = checked(shards.read(shard.path))
        except shards.BadShard as error:
            bad[shard.name] = str(error)
            shards.quarantine(root, shard.path, str(error))
            continue
        except OSError as error:
            bad[shard.name] = error.strerror or "cannot be read"
            continue
        good, rows = good + 1, rows + table.num_rows
        skipped.update(refused)
    removed = shards.clean(root)
    return CheckReport(
        root=str(root),
        shards=good,
        rows=rows,
        bad_shards=bad,
        quarantined=dict(Counter(shards.quarantined(root).values())),
        skipped_rows=dict(skipped),
        temporaries_removed=removed,
        newer_formats=_newer_formats(root),
        cache="",
    )


def deduplicated(tables: Sequence[pa.Table]) -> pa.Table:
    """All distinct rows, in an order that depends only on the rows."""
    import pyarrow as pa

    table = pa.concat_tables(tables)
    rows = {repr(row): index for index, row in enumerate(zip(*(column.to_pylist() for column in table.columns)))}
    return table.take(array_of([rows[row] for row in sorted(rows)], "int64"))


def _date(shard: shards.ShardFile) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(shard.mtime_ns / 1e9))


def _remove_if_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()


def _newer_formats(root: Path) -> tuple[str, ...]:
    found = sorted(path.name for path in root.glob("v*") if path.is_dir() and path.name != FORMAT)
    return tuple(found)
