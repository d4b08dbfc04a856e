"""Writes and reads the cache snapshot: the rows of the DuckDB cache in one Arrow file that is read without a lock.

While another process has the cache open, a store would have to read its rows from the shards, one small file per
measured kernel: milliseconds each, most of a minute for some thousand shards. The cache snapshot beside the cache holds
the rows of all but the latest shards. It is replaced atomically, so readers need no lock. A trailing checksum detects
damage."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ...plain import is_file
from ...private import read_sealed, sealed
from . import shards

if TYPE_CHECKING:
    import pyarrow as pa

MIN_NEW_SHARDS, MIN_NEW_SHARE = (
    64,
    0.125,
)  # a new cache snapshot is written when this number of shards, or this share of those in the old one, is missing
_VERSION, _SHARDS = b"tensor_graphs.version", b"tensor_graphs.shards"


def path_of(file: Path) -> Path:
    """Path of the cache snapshot that belongs to a cache file."""
    return file.with_suffix(".arrow")


def is_due(file: Path, version: str, count: int) -> bool:
    """Whether enough shards were added for a new cache snapshot. `count`: number of shards in the cache; `file`,
    `version`: the present snapshot and the cache version that it must have."""
    held = names(file, version)
    return count - len(held) >= max(MIN_NEW_SHARDS, MIN_NEW_SHARE * len(held))


def names(file: Path, version: str) -> frozenset[str]:
    """Names of the shards in a cache snapshot; empty if the file is missing or of another version."""
    import pyarrow as pa

    if not is_file(file):  # opening a pipe would wait
        return frozenset()
    try:
        with pa.memory_map(str(file)) as source:
            content = source.read_buffer(max(0, source.size() - len(sealed(b""))))
            with pa.ipc.open_file(content) as snapshot_file:
                return _names(snapshot_file.schema, version)
    except (OSError, ValueError, RecursionError, pa.ArrowException):
        return frozenset()


def write(file: Path, version: str, rows: pa.Table, held: Sequence[str]) -> None:
    """Replace the cache snapshot by `rows`, which are all rows of the shards `held`. `version`: of the cache's format.

    Raises OSError if it cannot be written.
    """
    import pyarrow as pa

    facts = {_VERSION: version.encode(), _SHARDS: json.dumps(list(held)).encode()}
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, rows.schema.with_metadata(facts)) as out:
        out.write_table(rows)
    shards.write_atomically(file, sealed(sink.getvalue().to_pybytes()))


def read(file: Path, version: str, schema: pa.Schema) -> tuple[pa.Table, frozenset[str]] | None:
    """Rows of a cache snapshot, and names of the shards that they come from.

    None if the file is missing, damaged, of another version or has other columns.
    """
    import pyarrow as pa

    try:
        with pa.ipc.open_file(pa.py_buffer(read_sealed(file, shards.MAX_SHARD_TABLE_BYTES))) as snapshot_file:
            held, rows = _names(snapshot_file.schema, version), snapshot_file.read_all()
        rows.validate(full=True)
    except (OSError, ValueError, MemoryError, RecursionError, pa.ArrowException):
        return None
    return (rows, held) if held and rows.schema.equals(schema) else None


def _names(schema: pa.Schema, version: str) -> frozenset[str]:
    facts = schema.metadata or {}
    if facts.get(_VERSION) != version.encode():
        return frozenset()
    found = json.loads(facts.get(_SHARDS, b"[]"))
    return frozenset(map(str, found)) if isinstance(found, list) else frozenset()


__all__ = ["is_due", "names", "path_of", "read", "write"]
