"""Reads and writes immutable Parquet shards named by their sha256: written atomically, verified on every import."""

from __future__ import annotations

import io
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b, sha256
from pathlib import Path
from typing import TYPE_CHECKING

from ...plain import Malformed, read_bytes
from ...writing.files import replacing_raw
from ...writing.hidden_files import PART, remove_abandoned, sync_folder
from . import bounded_parquet
from .schema import FORMAT, LATER, arrow_schema, completed

if TYPE_CHECKING:
    import pyarrow as pa

QUARANTINE = "quarantine"
MAX_SHARD_FILE_BYTES, MAX_SHARD_TABLE_BYTES = 256 << 20, 2 << 30  # bytes on disk, bytes of the decoded rows
#: Decoded rows take at most so many times the bytes on disk (15 in a store of measurements), but always as many bytes
#: as MIN_SHARD_TABLE_BYTES: bombs are refused. Many shards are decoded before their rows are inserted.
MAX_EXPANSION, MIN_SHARD_TABLE_BYTES = 200, 4 << 20
_NAME = re.compile(r"[0-9a-f]{64}\.parquet")
_TEMPORARY = ".tmp-"
_TEMPORARY_AGE_S = 3600.0
_DEPTH = 8  # folders below a store's root that are looked into: shards lie two deep


def is_name(name: str) -> bool:
    """Whether a file's name could be that of a shard: a SHA-256 in hex."""
    return _NAME.fullmatch(name) is not None


class BadShard(Exception):
    """Raised for a shard with invalid content; the text is a short reason usable in a file name."""


@dataclass(frozen=True)
class ShardFile:
    """A Parquet file of rows under a store's root. Its name should be the sha256 of its content; `read` refuses it if
    not."""

    path: Path
    size: int
    mtime_ns: int

    @property
    def name(self) -> str:
        """The file's name without its suffix."""
        return self.path.name.removesuffix(".parquet")


def device_slug(device: str) -> str:
    """A folder name for a device: readable ASCII, unique by a hash."""
    readable = re.sub(r"[^A-Za-z0-9.]+", "-", device).strip("-.")[:48]
    return f"{readable or 'unknown'}-{blake2b(device.encode('utf-8'), digest_size=4).hexdigest()}"


def encode(table: pa.Table) -> bytes:
    """The table as a Parquet file in bytes, with page checksums."""
    import pyarrow.parquet as pq

    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd", write_page_checksum=True, store_schema=False)
    return buffer.getvalue()


def write(root: Path, device: str, table: pa.Table) -> Path:
    """Write the rows of one device as a shard; returns once the file and its folders are durable.

    Raises OSError (no space, read-only, …), leaving nothing behind.
    """
    date = time.strftime("%Y-%m-%d", time.gmtime())
    return write_by_content(root / FORMAT / f"device={device_slug(device)}" / date, encode(table))


def write_by_content(folder: Path, content: bytes) -> Path:
    """Write `content` durably into `folder` under the name of its sha256, unless the file exists; returns its path."""
    target = folder / f"{sha256(content).hexdigest()}.parquet"
    if target.is_file() and target.stat().st_size == len(content) and target.read_bytes() == content:
        return target
    for last in (False, True):
        _make_durable_folder(folder)
        try:
            write_atomically(target, content)
            break
        except FileNotFoundError:  # another process removed the folder while compacting
            if last:
                raise
    return target


def write_atomically(target: Path, content: bytes) -> None:
    """Replace `target` by `content` atomically and durably. Raises OSError if it cannot be written."""
    with replacing_raw(target, tidy=False, own=True) as file:
        file.write(content)


def copy(shard: ShardFile, folder: Path) -> Path:
    """Copy another store's shard into `folder` under its own name; returns the path of the copy.

    Raises OSError if it cannot be read or written, or changed since verification.
    """
    content = shard.path.read_bytes()
    if sha256(content).hexdigest() != shard.name:
        raise OSError(f"{shard.path} changes while it is copied")
    return write_by_content(folder, content)


def _make_durable_folder(folder: Path) -> None:
    missing = []
    while not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    for new in reversed(missing):
        new.mkdir(exist_ok=True, mode=0o777)
        sync_folder(new.parent)


def read(path: Path) -> pa.Table:
    """The rows of a shard whose sha256 matches its name and whose columns have the schema's types.

    Raises BadShard for invalid content, OSError if the file cannot be read. Additional columns are ignored.
    """
    if not _NAME.fullmatch(path.name):
        raise BadShard("not-named-by-sha256")
    try:
        content = read_bytes(path, MAX_SHARD_FILE_BYTES)
    except Malformed:
        raise BadShard("too-large") from None
    if sha256(content).hexdigest() != path.name.removesuffix(".parquet"):
        raise BadShard("sha256-differs")
    return decode(content)


def decode(content: bytes) -> pa.Table:
    """The rows of a Parquet file given as bytes, with page checksums verified. Raises BadShard."""
    import pyarrow as pa

    wanted, most = arrow_schema(), max(MIN_SHARD_TABLE_BYTES, MAX_EXPANSION * len(content))
    try:
        table = bounded_parquet.read(content, wanted, min(most, MAX_SHARD_TABLE_BYTES), optional=LATER)
        table.validate(full=True)  # invalid UTF-8 would fail much later
        return completed(table)
    except bounded_parquet.TooLarge:
        raise BadShard("too-large") from None
    except KeyError:
        raise BadShard("wrong-columns") from None
    except (pa.ArrowException, OSError, ValueError, TypeError, LookupError, OverflowError, MemoryError) as error:
        raise BadShard("unreadable-parquet") from error


def find(root: Path) -> list[ShardFile]:
    """The Parquet files under a store's root in a fixed order; links are not followed."""
    found: dict[str, ShardFile] = {}
    for entry in _walk(root / FORMAT):
        if entry.name.endswith(".parquet") and not entry.name.startswith("."):
            try:
                facts = entry.stat(follow_symlinks=False)
            except OSError:  # removed by another process' compaction
                continue
            shard = ShardFile(Path(entry.path), facts.st_size, facts.st_mtime_ns)
            found.setdefault(entry.name, shard)
    return [found[name] for name in sorted(found)]


def _walk(folder: Path | str, depth: int = _DEPTH) -> Iterator[os.DirEntry[str]]:
    """All regular files in and up to `depth` folders below `folder`, sorted; unreadable and vanished folders are
    skipped."""
    try:
        with os.scandir(folder) as entries:
            ordered = sorted(entries, key=lambda entry: entry.name)
    except OSError:
        return
    for entry in ordered:
        if entry.is_dir(follow_symlinks=False):
            if depth:
                yield from _walk(entry.path, depth - 1)
        elif entry.is_file(follow_symlinks=False):
            yield entry


def quarantine(root: Path, path: Path, reason: str) -> bool:
    """Move a bad shard to the quarantine folder, with the reason in the new name. Returns False if the file system
    refuses."""
    folder = root / QUARANTINE
    try:
        folder.mkdir(exist_ok=True)
        os.replace(path, folder / f"{reason}.{path.name[:100]}")
    except OSError:
        return False
    return True


def quarantined(root: Path) -> dict[str, str]:
    """File name -> reason of every quarantined shard."""
    return {entry.name: entry.name.partition(".")[0] for entry in _walk(root / QUARANTINE)}


def temporaries(root: Path) -> list[Path]:
    """Hidden temporary files of active or killed writers."""
    return [Path(e.path) for e in _walk(root / FORMAT) if e.name.startswith(_TEMPORARY) or _is_part(e.name)]


def _is_part(name: str) -> bool:
    return name.startswith(".") and name.endswith(PART)


def clean(root: Path) -> int:
    """Remove temporary files of killed writers; returns the number of files.

    Files of earlier versions have no locks and are removed after an hour.
    """
    removed = 0
    for path in temporaries(root):
        try:
            if _is_part(path.name):
                removed += remove_abandoned(path)
            elif time.time() - path.stat().st_mtime > _TEMPORARY_AGE_S:
                path.unlink()
                removed += 1
        except OSError:
            continue
    return removed
