"""Keeps the rows of the stores that this process has read last, so that the next optimization does not open the cache
and read an unchanged store again, which is a third of a small search.

A store is unchanged if the files of its shards and its cache have the same names, sizes and times. Other processes only
add and remove shards, whose names are the SHA-256 of their content, so their changes are seen as before.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from ...lru_map import LruMap
from ...plain import file_identity
from ...processes.forks import Lock
from . import cache, shards

MOST_STORES, MOST_ROWS = 2, 20_000  # kept stores, and rows of one (about 1 kB each)


class _Stamp(NamedTuple):
    """What a store's files look like: (path, size in bytes, time in ns) of each shard; identity of the cache file."""

    shards: tuple[tuple[str, int, int], ...]
    cache: tuple[int, ...]


class _Kept(NamedTuple):
    stamp: _Stamp
    loaded: cache.LoadedCache


_kept: LruMap[str, _Kept] = LruMap(MOST_STORES)  # by path of the cache file
_lock = Lock()


def load(root: Path, file: Path, wait_s: float) -> cache.LoadedCache:
    """The rows that `cache.load_file` reads, in a snapshot of their own; from memory if the store is unchanged since
    this process has read it. Raises as `cache.load_file` does."""
    before, place = _stamp(root, file), os.path.abspath(file)
    with _lock:
        known = _kept.get(place)
        if known is not None and known.stamp == before:
            return _copy(known.loaded)
        _kept.pop(place, None)
    loaded = cache.load_file(root, file, wait_s)
    after = _stamp(root, file)
    # a shard that could not be read for now is neither good nor bad, and tried again
    complete = {*loaded.shards, *loaded.bad} == {Path(path).stem for path, _, _ in after.shards}
    if after.cache and complete and loaded.set_aside is None and len(loaded.snapshot) <= MOST_ROWS:
        with _lock:
            _kept[place] = _Kept(after, _copy(loaded))
    return loaded


def forget() -> None:
    """Keep no rows: each store is read again."""
    with _lock:
        _kept.clear()


def _stamp(root: Path, file: Path) -> _Stamp:
    try:
        identity = file_identity(file)
    except OSError:
        identity = ()
    return _Stamp(tuple((str(shard.path), shard.size, shard.mtime_ns) for shard in shards.find(root)), identity)


def _copy(loaded: cache.LoadedCache) -> cache.LoadedCache:
    """The same rows in a snapshot to which rows can be added."""
    return replace(loaded, snapshot=loaded.snapshot.copy(), skipped=loaded.skipped.copy(), bad=dict(loaded.bad))


__all__ = ["forget", "load"]
