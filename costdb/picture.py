"""What the cache held when somebody last brought it up to date, as one file that is read without a lock.

While another process has the cache open, a store's rows would have to be read from its shards, one small file a measured kernel:
milliseconds each, which for some thousand shards is most of a minute. The picture beside the cache holds the rows of all but the
latest shards; it is replaced as a whole, so that whoever reads it needs nobody's leave. A
checksum at its end finds damage.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..private import read_sealed, sealed
from . import shards

if TYPE_CHECKING:
    import pyarrow as pa

LEAST, GROWTH = (
    64,
    0.125,
)  # shards beyond those of the picture, or a share of these, from which on a new one is worth its writing
_VERSION, _SHARDS = b"tensor_graphs.version", b"tensor_graphs.shards"


def path_of(file: Path) -> Path:
    """The picture of a cache file."""
    return file.with_suffix(".arrow")


def is_due(file: Path, version: str, count: int) -> bool:
    """Whether a cache of so many shards has outgrown its picture."""
    held = names(file, version)
    return count - len(held) >= max(LEAST, GROWTH * len(held))


def names(file: Path, version: str) -> frozenset[str]:
    """The shards that a picture holds; none where there is no such file, or one of another version."""
    import pyarrow as pa

    try:
        with pa.memory_map(str(file)) as source:
            content = source.read_buffer(max(0, source.size() - len(sealed(b""))))
            with pa.ipc.open_file(content) as picture:
                return _names(picture.schema, version)
    except (OSError, ValueError, RecursionError, pa.ArrowException):
        return frozenset()


def write(file: Path, version: str, rows: pa.Table, held: Sequence[str]) -> None:
    """Replace the picture by these rows, which are all that these shards hold. OSError where that is not possible."""
    import pyarrow as pa

    facts = {_VERSION: version.encode(), _SHARDS: json.dumps(list(held)).encode()}
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, rows.schema.with_metadata(facts)) as out:
        out.write_table(rows)
    shards.write_atomically(file, sealed(sink.getvalue().to_pybytes()))


def read(file: Path, version: str, schema: pa.Schema) -> tuple[pa.Table, frozenset[str]] | None:
    """The rows, and the shards that they are all of; None where there is no picture, a damaged one, or one of another version or
    with other columns."""
    import pyarrow as pa

    try:
        with pa.ipc.open_file(pa.py_buffer(read_sealed(file, shards.LARGEST_TABLE))) as picture:
            held, rows = _names(picture.schema, version), picture.read_all()
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
