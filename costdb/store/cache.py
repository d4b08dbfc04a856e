"""Keeps the private DuckDB cache: validated rows of all shards, rebuilt on demand, opened briefly under a file lock."""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ... import cache_folder, private
from ...plain import is_file
from . import cache_snapshot, shards
from .schema import COLUMNS, FORMAT
from .shard_import import GOOD_SHARD, append_rows, import_shards, record_shards
from .snapshot import LOADED, Snapshot
from .valid_rows import readable_tables

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

CACHE_VERSION = f"{FORMAT}.1"
_DUCKDB_TYPES = {"string": "VARCHAR", "double": "DOUBLE", "int64": "BIGINT", "doubles": "DOUBLE[]"}
MAX_CACHE_WAIT_S = 0.5  # longest wait for the cache if the cache snapshot and the latest shards have the same rows


class CacheBusy(Exception):
    """Raised when another process holds the cache longer than the permitted wait."""


class CacheUnusable(Exception):
    """Raised when no cache file can be kept here (read-only, foreign owner, no space); the text gives the reason."""


@dataclass
class LoadedCache:
    """Rows read from a store, and the data that were refused.

    `shards`: names of the good shards. `skipped`: number of skipped rows by reason. `bad`: bad shards with the reason.
    `set_aside`: new path of a damaged cache file.
    """

    snapshot: Snapshot
    shards: tuple[str, ...]
    skipped: Counter[str] = field(default_factory=Counter)
    bad: dict[str, str] = field(default_factory=dict)
    set_aside: Path | None = None


def private_folder(root: Path) -> Path:
    """Folder of this user's cache under a store's root, not writable by others.

    Under the user's own cache folder if others can write to the store. Raises CacheUnusable if neither is possible.
    """
    folder = root / (f"cache-{os.getuid()}" if hasattr(os, "getuid") else "cache")
    with suppress(OSError):
        root.mkdir(parents=True, exist_ok=True)  # default mode: stores may be shared
    why = private.private_folder(folder)
    if not why:
        return folder
    if private.unsafe_folder(root):
        own = cache_folder.home() / "stores" / blake2b(os.fsencode(os.path.realpath(root)), digest_size=16).hexdigest()
        if not private.private_folder(own):
            return own
    raise CacheUnusable(f"the cache folder cannot be used: {why}")


def load_file(root: Path, file: Path, wait_s: float) -> LoadedCache:
    """Rows of the cache file, updated from the shards first. Raises CacheBusy if another process holds the file for
    more than `wait_s` seconds, CacheUnusable if no file can be kept.

    A file that cannot be opened, read or understood is renamed to `*.corrupt-<time>` and rebuilt. A store without
    shards gets no file.
    """
    if not file.exists() and not shards.find(root):
        return LoadedCache(Snapshot(), ())
    import duckdb
    from filelock import FileLock, Timeout

    if cache_snapshot.names(cache_snapshot.path_of(file), CACHE_VERSION):
        wait_s = min(wait_s, MAX_CACHE_WAIT_S)
    deadline = time.monotonic() + wait_s
    try:
        with FileLock(file.with_suffix(".lock"), timeout=wait_s):
            try:
                return _open_and_load(root, file, deadline)
            except (duckdb.Error, _WrongVersion, ValueError, RuntimeError) as error:
                _raise_if_no_room(error)
                aside = set_aside(file)
                loaded = _open_and_load(root, file, deadline)
                loaded.set_aside = aside
                return loaded
    except Timeout as error:
        raise CacheBusy("another process keeps the cache locked") from error
    except (OSError, duckdb.Error, _WrongVersion) as error:
        raise CacheUnusable(f"the cache cannot be written ({str(error).splitlines()[0][:200]})") from error


def load_memory(root: Path, file: Path | None = None) -> LoadedCache:
    """Rows of all shards, read into an in-memory database for this call only.

    Rows in the cache snapshot of `file` come from there, the others shard by shard.
    """
    held = (
        None if file is None else cache_snapshot.read(cache_snapshot.path_of(file), CACHE_VERSION, _snapshot_schema())
    )
    with _connection(":memory:") as connection:
        _create(connection)
        if held is not None:
            rows, names = held
            present = [shard for shard in shards.find(root) if shard.name in names]
            record_shards(connection, [(shard, GOOD_SHARD, Counter()) for shard in present])
            append_rows(connection, rows)  # rows of deleted shards are removed below
            missing = sorted(names - {shard.name for shard in present})
            connection.execute("DELETE FROM rows WHERE shard IN (SELECT unnest(?))", [missing])
        return _synchronised(connection, root)


def _snapshot_schema() -> pa.Schema:
    """The cache snapshot's schema: the columns kept in memory, and each row's shard."""
    import pyarrow as pa

    from .schema import arrow_schema

    names = {"kind", *(name for columns in LOADED.values() for name in columns)}
    return pa.schema([pa.field("shard", pa.string()), *(f for f in arrow_schema() if f.name in names)])


def _write_snapshot(connection: duckdb.DuckDBPyConnection, file: Path, loaded: LoadedCache) -> None:
    """Write a new cache snapshot if it is due; write errors are ignored."""
    target = cache_snapshot.path_of(file)
    if not cache_snapshot.is_due(target, CACHE_VERSION, len(loaded.shards)):
        return
    schema = _snapshot_schema()
    chosen = ", ".join(f'"{name}"' for name in schema.names)
    rows = connection.sql(f"SELECT {chosen} FROM rows").to_arrow_table().cast(schema)
    with suppress(OSError):
        cache_snapshot.write(target, CACHE_VERSION, rows, loaded.shards)


def samples(root: Path, digests: Sequence[str]) -> list[tuple[str, str, str, int, list[float]]]:
    """All timings of some keys (kernels at one shape, layout, schedule and machine), read from the shards: (digest,
    regime, run, time in µs since 1970, samples in µs)."""
    wanted = set(digests)
    found = set()
    names = ("digest", "regime", "run", "time_us", "samples", "kind")
    for table in readable_tables(root):
        for *row, values, kind in zip(*(table.column(name).to_pylist() for name in names)):
            if kind == "timing" and row[0] in wanted:
                found.add((*row, tuple(values)))
    return [(*row, list(values)) for *row, values in sorted(found)]


def set_aside(file: Path) -> Path:
    """Rename a damaged cache file (and its write-ahead log); returns its new path."""
    stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime()) + f"-{time.time_ns() % 1_000_000_000:09d}"
    aside = file.with_name(f"{file.name}.corrupt-{stamp}")
    os.replace(file, aside)
    log = file.with_name(file.name + ".wal")
    if log.exists():
        os.replace(log, aside.with_name(aside.name + ".wal"))
    return aside


class _WrongVersion(Exception):
    """Raised when the cache was written by another version of this package."""


def _raise_if_no_room(error: Exception) -> None:
    """Raise CacheUnusable for a full or read-only disk, which is no damage of the cache."""
    text = str(error).lower()
    if any(sign in text for sign in ("no space left", "read-only file system", "permission denied", "disk quota")):
        raise CacheUnusable(f"the cache cannot be written ({text.splitlines()[0][:200]})") from error


def _open_and_load(root: Path, file: Path, deadline: float) -> LoadedCache:
    import duckdb

    while True:
        try:
            fresh = not file.exists()
            if not fresh and not is_file(file):  # opening a pipe would wait
                raise _WrongVersion("it is not a plain file")
            with _connection(str(file)) as connection:
                if fresh:
                    _create(connection)
                _verify_version(connection)
                loaded = _synchronised(connection, root)
                _write_snapshot(connection, file, loaded)
                return loaded
        except duckdb.IOException as error:
            if "lock on file" not in str(error):
                raise
            if time.monotonic() > deadline:
                raise CacheBusy("another program has the cache open") from error
            time.sleep(random.uniform(0.01, 0.1))


INTERRUPTED = "interrupted"


@contextmanager
def _connection(target: str) -> Iterator[duckdb.DuckDBPyConnection]:
    """An isolated database connection: no other files, no network, no extensions."""
    import duckdb

    connection = duckdb.connect(
        target,
        config={
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "allow_community_extensions": False,
            "threads": 1,
        },
    )
    try:
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
        yield connection
    except (RuntimeError, duckdb.Error) as error:
        # DuckDB's report of an exception from a signal handler: not a fault of the file
        if INTERRUPTED in str(error).lower():
            raise KeyboardInterrupt from error
        raise
    finally:
        connection.close()


def _create(connection: duckdb.DuckDBPyConnection) -> None:
    columns = ", ".join(f'"{name}" {_DUCKDB_TYPES[kind]}' for name, kind in COLUMNS.items())
    connection.execute("BEGIN")
    connection.execute("CREATE TABLE meta (version VARCHAR)")
    connection.execute("INSERT INTO meta VALUES (?)", [CACHE_VERSION])
    connection.execute(
        "CREATE TABLE shards (name VARCHAR, size BIGINT, mtime_ns BIGINT, status VARCHAR, skipped VARCHAR)"
    )
    connection.execute(f"CREATE TABLE rows (shard VARCHAR, {columns})")
    connection.execute("COMMIT")


def _verify_version(connection: duckdb.DuckDBPyConnection) -> None:
    import duckdb

    try:
        found = connection.execute("SELECT version FROM meta").fetchall()
        have = [row[0] for row in connection.execute("SELECT column_name FROM (DESCRIBE rows)").fetchall()]
    except duckdb.CatalogException as error:
        raise _WrongVersion("tables are missing") from error
    if found != [(CACHE_VERSION,)] or have != ["shard", *COLUMNS]:
        raise _WrongVersion(f"version {found!r}")


def _synchronised(connection: duckdb.DuckDBPyConnection, root: Path) -> LoadedCache:
    known = {
        name: (size, mtime_ns, status, skipped)
        for name, size, mtime_ns, status, skipped in connection.execute("SELECT * FROM shards").fetchall()
    }
    present = {shard.name: shard for shard in shards.find(root)}
    gone = [
        name
        for name, (size, mtime_ns, status, _) in known.items()
        if name not in present
        or (status != GOOD_SHARD and (size, mtime_ns) != (present[name].size, present[name].mtime_ns))
    ]
    if gone:
        connection.execute("BEGIN")
        connection.execute("DELETE FROM rows WHERE shard IN (SELECT unnest(?))", [gone])
        connection.execute("DELETE FROM shards WHERE name IN (SELECT unnest(?))", [gone])
        connection.execute("COMMIT")
    new = [shard for name, shard in present.items() if name not in known or name in gone]
    import_shards(connection, root, new)
    return _read(connection)


def _read(connection: duckdb.DuckDBPyConnection) -> LoadedCache:
    snapshot = Snapshot()
    for kind, names in LOADED.items():
        chosen = ", ".join(f'"{name}"' for name in names)
        # DISTINCT: a row may be in several shards, after a merge or while another process compacts
        found: dict[str, Any] = connection.execute(
            f"SELECT DISTINCT {chosen} FROM rows WHERE kind = ?", [kind]
        ).fetchnumpy()
        snapshot.extend(kind, {name: found[name].tolist() for name in names})
    skipped: Counter[str] = Counter()
    good, bad = [], {}
    for name, status, counts in connection.execute("SELECT name, status, skipped FROM shards ORDER BY name").fetchall():
        if status == GOOD_SHARD:
            good.append(name)
        else:
            bad[name] = status
        skipped.update(json.loads(counts))
    return LoadedCache(snapshot, tuple(good), skipped, bad)
