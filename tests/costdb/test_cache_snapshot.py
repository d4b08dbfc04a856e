"""A locked store is read from its cache snapshot and the shards written since."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from filelock import FileLock

from tensor_graphs.costdb.reports.reports import CostStoreWarning
from tensor_graphs.costdb.store import cache_snapshot
from tensor_graphs.costdb.store.schema import AccuracyRow, FailureRow, TimingRow
from tensor_graphs.costdb.store.store import Store, cache, shards

from .reading import lookup

Make = Callable[..., TimingRow]


@pytest.fixture
def filled(tmp_path: Path, timing: Make, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store of eight shards and its cache snapshot, and one shard more."""
    monkeypatch.setattr(cache_snapshot, "MIN_NEW_SHARDS", 4)
    store = Store(tmp_path / "db")
    for size in range(1, 9):
        store.add([timing(float(size), size)])
    rest = {"key": timing(size=3).key, "work": timing(size=3).work}
    store.add([AccuracyRow(rel_fro=0.25, **rest), FailureRow(status="crash", message="gone", **rest)])
    assert len(store.snapshot) == 10 and snapshot_of(store.root).exists()
    store.add([timing(9.0, 9)])
    return store.root


def snapshot_of(root: Path) -> Path:
    return next(root.glob("cache*")) / "v1.arrow" if not (found := list(root.glob("cache*/*.arrow"))) else found[0]


@contextmanager
def locked(root: Path) -> Iterator[None]:
    """Another process has the cache, and says so."""
    with FileLock(next(root.glob("cache*/*.lock"))), pytest.warns(CostStoreWarning, match="keeps the cache locked"):
        yield


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Shards that were read one by one."""
    seen: list[str] = []
    plain = shards.read
    monkeypatch.setattr(shards, "read", lambda path: seen.append(path.name) or plain(path))
    return seen


def facts(store: Store, timing: Make) -> str:
    keys = [timing(size=size).key for size in range(1, 11)]
    found = lookup(store, keys)
    return repr((
        {d: (m.us, m.low, m.high, m.n, m.samples) for d, m in found.items()}, store.accuracies(keys), store.failures(keys),
        store.snapshot_id(), len(store.snapshot),
    ))  # fmt: skip


def test_a_locked_store_says_the_same_and_reads_only_what_is_new(filled: Path, timing: Make, read: list[str]) -> None:
    with locked(filled):
        there = facts(Store(filled, wait_s=0.0), timing)
    assert len(read) == 1, "all but the latest shard are in the cache snapshot"
    assert there == facts(Store(filled), timing)


def test_nobody_waits_for_a_lock_where_there_is_a_cache_snapshot(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "MAX_CACHE_WAIT_S", 0.01)
    with locked(filled):
        assert len(Store(filled, wait_s=1e9).snapshot) == 11


@pytest.mark.parametrize("damage", ["none", "text", "cut", "version", "folder"])
def test_a_damaged_cache_snapshot_is_as_none(
    damage: str, filled: Path, timing: Make, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    want, file = facts(Store(filled), timing), snapshot_of(filled)
    read.clear()
    if damage == "text":
        file.write_bytes(b"this is no table" * 100)
    elif damage == "cut":
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    elif damage == "version":
        monkeypatch.setattr(cache, "CACHE_VERSION", "another")
    else:
        file.unlink()
        if damage == "folder":
            file.mkdir()
    with locked(filled):
        assert facts(Store(filled, wait_s=0.0), timing) == want
    assert len(read) == 10


def test_rows_of_shards_that_are_gone_are_not_seen(filled: Path, timing: Make) -> None:
    gone = next(s for s in shards.find(filled) if "crash" in str(shards.read(s.path).column("status").to_pylist()))
    gone.path.unlink()
    with locked(filled):
        store = Store(filled, wait_s=0.0)
        assert not store.failures([timing(size=3).key]) and len(store.snapshot) == 9


def test_a_cache_snapshot_is_drawn_again_when_the_store_has_grown(filled: Path, timing: Make) -> None:
    drawn = cache_snapshot.names(snapshot_of(filled), cache.CACHE_VERSION)
    for size in range(20, 22):
        Store(filled).add([timing(float(size), size)])
    assert len(Store(filled).snapshot) == 13 and cache_snapshot.names(snapshot_of(filled), cache.CACHE_VERSION) == drawn
    Store(filled).add([timing(30.0, 30)])
    assert len(Store(filled).snapshot) == 14
    assert len(cache_snapshot.names(snapshot_of(filled), cache.CACHE_VERSION)) == len(drawn) + 4


def test_a_row_that_cannot_be_used_costs_no_other(tmp_path: Path, timing: Make) -> None:
    """Shards are judged together; where rows are refused, each says how many of its own were."""
    store = Store(tmp_path / "db")
    for size in range(1, 5):
        store.add([timing(float(size), size)])
    bad = shards.read(shards.find(store.root)[0].path)
    bad = bad.set_column(bad.schema.get_field_index("time_us"), "time_us", [[1]])
    shards.write(store.root, "cpu:test", bad)
    fresh = Store(store.root)
    assert len(lookup(fresh, [timing(size=size).key for size in range(1, 5)])) == 4
    loaded = cache.load_memory(store.root)
    assert loaded.skipped == {"absurd date": 1} and len(loaded.shards) == 5 and not loaded.bad
