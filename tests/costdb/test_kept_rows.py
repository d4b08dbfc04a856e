"""Stores whose files are unchanged are read once by a process."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tensor_graphs.costdb.reports.reports import CostStoreWarning
from tensor_graphs.costdb.store import cache, kept_rows, shards
from tensor_graphs.costdb.store.store import Store

Make = Callable[..., Any]


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Stores whose cache was opened; this process keeps the rows of two."""
    found: list[Path] = []
    plain = cache.load_file
    monkeypatch.setattr(cache, "load_file", lambda root, *rest: found.append(root) or plain(root, *rest))
    monkeypatch.setattr(kept_rows._kept, "most", 2)
    kept_rows.forget()
    return found


def sizes(root: Path) -> list[str]:
    return sorted(Store(root).snapshot.column("timing", "shapes"))


def test_an_unchanged_store_is_read_once(tmp_path: Path, timing: Make, reads: list[Path]) -> None:
    root = tmp_path / "db"
    Store(root).add([timing(size=1), timing(size=2)])
    first = sizes(root)
    opened = len(reads)
    again = Store(root)
    assert sizes(root) == sorted(again.snapshot.column("timing", "shapes")) == first and len(reads) == opened
    again.add([timing(size=3)])  # visible to this store, not in what the process keeps
    assert len(again.snapshot) == 3 and len(sizes(root)) == 3 and len(reads) == opened + 1
    for shard in shards.find(root)[:1]:
        os.remove(shard.path)
    assert len(sizes(root)) < 3 and len(reads) == opened + 2


def test_a_changed_cache_is_read_again(tmp_path: Path, timing: Make, reads: list[Path]) -> None:
    root = tmp_path / "db"
    Store(root).add([timing()])
    first = sizes(root)
    next(root.glob("cache*/*.duckdb")).write_bytes(b"damaged")
    with pytest.warns(CostStoreWarning, match="damaged"):
        assert sizes(root) == first
    reads.clear()
    assert sizes(root) == sizes(root) == first and len(reads) == 1
    assert Store(root).check().cache == "ok" and len(reads) == 2, "a check tests the cache itself"


def test_few_stores_and_no_large_ones_are_kept(
    tmp_path: Path, timing: Make, reads: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    roots = [tmp_path / name for name in "abc"]
    for root in roots:
        Store(root).add([timing()])
        sizes(root)
    reads.clear()
    assert all(sizes(root) for root in roots[::-1]) and reads == [roots[0]]
    monkeypatch.setattr(kept_rows, "MOST_ROWS", 0)
    kept_rows.forget()
    assert sizes(roots[0]) == sizes(roots[0]) and reads == [roots[0]] * 3
