"""Imports shards into the database of the cache: reads them in parallel, and inserts their valid rows in batches."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from ..keys.device import cores
from . import shards
from .arrow_arrays import array_of
from .schema import checked

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

GOOD_SHARD = "ok"
_BATCH_SHARDS, _BATCH_BYTES = 256, 16 << 20  # limits of one batch of shards read before insertion
ShardFact = tuple[shards.ShardFile, str, "Counter[str]"]  # (shard, status, skipped rows by reason)


def import_shards(connection: duckdb.DuckDBPyConnection, root: Path, new: Sequence[shards.ShardFile]) -> None:
    """Read shards in parallel and insert them in batches; a bad shard does not affect the others."""
    with ThreadPoolExecutor(max(1, min(8, cores()))) as threads:
        for batch in _batches(new):
            good: list[tuple[shards.ShardFile, pa.Table]] = []
            facts: list[ShardFact] = []
            for shard, (status, table) in zip(batch, threads.map(_read_shard, batch)):
                if table is not None:
                    good.append((shard, table))
                elif status:
                    facts.append((shard, status, Counter()))
                    if not status.startswith(UNREADABLE):
                        shards.quarantine(root, shard.path, status)
            _insert(connection, good, facts)


def _batches(new: Sequence[shards.ShardFile]) -> Iterator[list[shards.ShardFile]]:
    """Batches of shards, limited in number and bytes."""
    batch: list[shards.ShardFile] = []
    for shard in new:
        if batch and (len(batch) == _BATCH_SHARDS or sum(s.size for s in batch) + shard.size > _BATCH_BYTES):
            yield batch
            batch = []
        batch.append(shard)
    if batch:
        yield batch


UNREADABLE = "cannot-be-read"


def _read_shard(shard: shards.ShardFile) -> tuple[str, pa.Table | None]:
    """(status, rows) of a shard; the status is a reason if rows are None ("": the shard was compacted away since
    listing)."""
    try:
        return GOOD_SHARD, shards.read(shard.path)
    except shards.BadShard as error:
        return str(error), None
    except FileNotFoundError:
        return "", None
    except OSError as error:
        return f"{UNREADABLE}-{error.errno}", None


def _insert(
    connection: duckdb.DuckDBPyConnection, good: Sequence[tuple[shards.ShardFile, pa.Table]], facts: list[ShardFact]
) -> None:
    """Record shards, and insert the valid rows of the good ones.

    A batch is validated as one table, and shard by shard only if rows are refused: validation takes as long for one row
    as for thousands.
    """
    import pyarrow as pa

    tables = [table for _, table in good]
    whole, refused = checked(pa.concat_tables(tables)) if tables else (None, Counter[str]())
    if refused:
        each = [checked(table) for table in tables]
        tables, whole = [table for table, _ in each], pa.concat_tables([table for table, _ in each])
        facts = [*facts, *((shard, GOOD_SHARD, skipped) for (shard, _), (_, skipped) in zip(good, each))]
    else:
        facts = [*facts, *((shard, GOOD_SHARD, Counter[str]()) for shard, _ in good)]
    connection.execute("BEGIN")
    record_shards(connection, facts)
    if whole is not None:
        names = [shard.name for (shard, _), table in zip(good, tables) for _ in range(table.num_rows)]
        append_rows(connection, whole.append_column("shard", array_of(names, "string")))
    connection.execute("COMMIT")


def record_shards(connection: duckdb.DuckDBPyConnection, facts: Sequence[ShardFact]) -> None:
    """Record the status of shards. (As one table: row by row would take longer than reading the shards.)"""
    import pyarrow as pa

    rows = [(s.name, s.size, s.mtime_ns, status, json.dumps(dict(skipped))) for s, status, skipped in facts]
    columns = dict(zip(("name", "size", "mtime_ns", "status", "skipped"), zip(*rows)))
    if columns:
        kinds = {name: "int64" if name in ("size", "mtime_ns") else "string" for name in columns}
        arrays = {name: array_of(values, kinds[name]) for name, values in columns.items()}
        connection.register("noted", pa.table(arrays))
        connection.execute("INSERT INTO shards BY NAME SELECT * FROM noted")
        connection.unregister("noted")


def append_rows(connection: duckdb.DuckDBPyConnection, rows: pa.Table) -> None:
    """Append rows, whose column `shard` names the shard of each, to the database."""
    connection.register("incoming", rows)
    connection.execute("INSERT INTO rows BY NAME SELECT * FROM incoming")
    connection.unregister("incoming")
