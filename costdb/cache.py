"""The private DuckDB file: verified rows of all shards, rebuilt at will, open for moments and under a file lock."""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import shards
from .schema import COLUMNS, FORMAT, checked
from .snapshot import LOADED, Snapshot

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

CACHE_VERSION = f"{FORMAT}.1"
GOOD = "ok"
_DUCKDB_TYPES = {"string": "VARCHAR", "double": "DOUBLE", "int64": "BIGINT", "doubles": "DOUBLE[]"}
_BATCH_ROWS = 100_000


class Busy(Exception):
    """Another process has the cache open for longer than we are willing to wait."""


class Unusable(Exception):
    """No cache file can be kept here (read-only, foreign owner, no space); its text says why."""


@dataclass
class Loaded:
    """What came out of the cache: the rows, the shards they are from, and what was refused."""

    snapshot: Snapshot
    shards: tuple[str, ...]
    skipped: Counter[str] = field(default_factory=Counter)
    bad: dict[str, str] = field(default_factory=dict)
    set_aside: Path | None = None


def private_folder(root: Path) -> Path:
    """The folder of this user's cache below a store's root, made private; raises Unusable."""
    folder = root / (f"cache-{os.getuid()}" if hasattr(os, "getuid") else "cache")
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        facts = folder.lstat()
    except OSError as error:
        raise Unusable(f"the cache folder cannot be made ({error.strerror or error})") from error
    if folder.is_symlink() or (hasattr(os, "getuid") and facts.st_uid != os.getuid()):
        raise Unusable("the cache folder belongs to another user or is a link")
    if not os.access(folder, os.W_OK):
        raise Unusable("the cache folder is read-only")
    return folder


def load_file(root: Path, file: Path, wait_s: float) -> Loaded:
    """Bring the cache file up to date with the shards and read it. Raises Busy or Unusable.

    A file that cannot be opened, read or understood is moved aside as `*.corrupt-<time>` and built anew.
    """
    import duckdb
    from filelock import FileLock, Timeout

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
        raise Busy("another process keeps the cache locked") from error
    except (OSError, duckdb.Error, _WrongVersion) as error:
        raise Unusable(f"the cache cannot be written ({str(error).splitlines()[0][:200]})") from error


def load_memory(root: Path) -> Loaded:
    """Read all shards into a database that lives only for this call."""
    with _connection(":memory:") as connection:
        _create(connection)
        return _synchronised(connection, root)


def samples(root: Path, digests: Sequence[str]) -> list[tuple[str, str, str, int, list[float]]]:
    """(digest, regime, run, time in µs, samples in µs) of all timings of the keys, straight from the shards."""
    wanted = set(digests)
    found = set()
    for shard in shards.find(root):
        try:
            table, _ = checked(shards.read(shard.path))
        except (shards.BadShard, OSError):
            continue
        names = ("digest", "regime", "run", "time_us", "samples", "kind")
        for *row, values, kind in zip(*(table.column(name).to_pylist() for name in names)):
            if kind == "timing" and row[0] in wanted:
                found.add((*row, tuple(values)))
    return [(*row, list(values)) for *row, values in sorted(found)]


def set_aside(file: Path) -> Path:
    """Move a broken cache (and its write-ahead log) out of the way; returns its new path."""
    stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime()) + f"-{time.time_ns() % 1_000_000_000:09d}"
    aside = file.with_name(f"{file.name}.corrupt-{stamp}")
    os.replace(file, aside)
    log = file.with_name(file.name + ".wal")
    if log.exists():
        os.replace(log, aside.with_name(aside.name + ".wal"))
    return aside


class _WrongVersion(Exception):
    """The cache was written by another version of this package."""


def _raise_if_no_room(error: Exception) -> None:
    """A full or read-only disk is no reason to throw the cache away."""
    text = str(error).lower()
    if any(sign in text for sign in ("no space left", "read-only file system", "permission denied", "disk quota")):
        raise Unusable(f"the cache cannot be written ({text.splitlines()[0][:200]})") from error


def _open_and_load(root: Path, file: Path, deadline: float) -> Loaded:
    import duckdb

    while True:
        try:
            fresh = not file.exists()
            with _connection(str(file)) as connection:
                if fresh:
                    _create(connection)
                _verify_version(connection)
                return _synchronised(connection, root)
        except duckdb.IOException as error:
            if "lock on file" not in str(error):
                raise
            if time.monotonic() > deadline:
                raise Busy("another program has the cache open") from error
            time.sleep(random.uniform(0.01, 0.1))


INTERRUPTED = "interrupted"


@contextmanager
def _connection(target: str) -> Iterator[duckdb.DuckDBPyConnection]:
    """A database that can reach nothing outside itself: no other files, no network, no extensions."""
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
        if INTERRUPTED in str(error).lower():  # how DuckDB passes on what a signal handler raised: no fault of the file
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


def _synchronised(connection: duckdb.DuckDBPyConnection, root: Path) -> Loaded:
    known = {
        name: (size, mtime_ns, status, skipped)
        for name, size, mtime_ns, status, skipped in connection.execute("SELECT * FROM shards").fetchall()
    }
    present = {shard.name: shard for shard in shards.find(root)}
    gone = [
        name
        for name, (size, mtime_ns, status, _) in known.items()
        if name not in present or (status != GOOD and (size, mtime_ns) != (present[name].size, present[name].mtime_ns))
    ]
    if gone:
        connection.execute("BEGIN")
        connection.execute("DELETE FROM rows WHERE shard IN (SELECT unnest(?))", [gone])
        connection.execute("DELETE FROM shards WHERE name IN (SELECT unnest(?))", [gone])
        connection.execute("COMMIT")
    new = [shard for name, shard in present.items() if name not in known or name in gone]
    _import(connection, root, new)
    return _read(connection)


def _import(connection: duckdb.DuckDBPyConnection, root: Path, new: Sequence[shards.ShardFile]) -> None:
    """Read shards one by one, so that a bad one costs only itself, and insert them in batches."""
    batch: list[tuple[shards.ShardFile, str, Counter[str], pa.Table | None]] = []
    rows = 0
    for shard in new:
        status, skipped, table = GOOD, Counter[str](), None
        try:
            table, skipped = checked(shards.read(shard.path))
            rows += table.num_rows
        except shards.BadShard as error:
            status = str(error)
            shards.quarantine(root, shard.path, status)
        except FileNotFoundError:  # compacted away since it was listed
            continue
        except OSError as error:
            status = f"cannot-be-read-{error.errno}"
        batch.append((shard, status, skipped, table))
        if rows >= _BATCH_ROWS:
            _insert(connection, batch)
            batch, rows = [], 0
    if batch:
        _insert(connection, batch)


def _insert(
    connection: duckdb.DuckDBPyConnection,
    batch: Sequence[tuple[shards.ShardFile, str, Counter[str], pa.Table | None]],
) -> None:
    import pyarrow as pa

    connection.execute("BEGIN")
    facts = [
        [shard.name, shard.size, shard.mtime_ns, status, json.dumps(dict(skipped))]
        for shard, status, skipped, _ in batch
    ]
    connection.executemany("INSERT INTO shards VALUES (?, ?, ?, ?, ?)", facts)
    tables = [
        table.append_column("shard", pa.array([shard.name] * table.num_rows, type=pa.string()))
        for shard, _, _, table in batch
        if table is not None
    ]
    if tables:
        connection.register("incoming", pa.concat_tables(tables))
        connection.execute("INSERT INTO rows BY NAME SELECT * FROM incoming")
        connection.unregister("incoming")
    connection.execute("COMMIT")


def _read(connection: duckdb.DuckDBPyConnection) -> Loaded:
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
        if status == GOOD:
            good.append(name)
        else:
            bad[name] = status
        skipped.update(json.loads(counts))
    return Loaded(snapshot, tuple(good), skipped, bad)
