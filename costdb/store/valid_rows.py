"""Reads the valid rows of all shards under a store's root from the files themselves, without the cache."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import CostStoreError
from . import shards
from .schema import checked

if TYPE_CHECKING:
    import pyarrow as pa


def readable_tables(root: Path) -> Iterator[pa.Table]:
    """The valid rows of each good shard, a table a shard; bad shards (`db check` names them) are left out."""
    for shard in shards.find(root):
        try:
            table, _ = checked(shards.read(shard.path))
        except (shards.BadShard, OSError):
            continue
        yield table


def exported_tables(root: Path) -> Iterator[pa.Table]:
    """The valid rows of each shard, a table a shard. Raises CostStoreError at the first bad shard."""
    for shard in shards.find(root):
        try:
            table, _ = checked(shards.read(shard.path))
        except (shards.BadShard, OSError) as error:
            raise CostStoreError(
                f"a shard cannot be exported: {error}", where=str(shard.path), hint="`tensor-graphs db check`"
            ) from error
        yield table
