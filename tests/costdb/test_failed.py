"""What failed, counted by kind of kernel."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tensor_graphs.costdb.keys.key import KernelKey
from tensor_graphs.costdb.store.failed import failed
from tensor_graphs.costdb.store.schema import FailureRow, TimingRow
from tensor_graphs.costdb.store.store import Store


def test_failures_are_counted_by_key_and_way(
    tmp_path: Path, key: Callable[..., KernelKey], timing: Callable[..., TimingRow]
) -> None:
    """Each key once for each way, the latest as the example, of all keys of its name; a key that was timed as well
    counts."""
    one, two, other = key(1), key(2), key(3, name="other")
    wrong = [FailureRow(key=k, status="wrong", stage="try", message=f"at {t}", time_us=1_700_000_000_000_000 + t) for k, t in (
        (one, 1), (one, 3), (two, 2),
    )]  # fmt: skip
    spills = FailureRow(key=other, status="spills", stage="compile", message="8 bytes")
    Store(tmp_path).add([*wrong, spills, timing(size=2), timing(size=4)])
    found = failed(tmp_path)
    assert (found.keys, found.of) == (3, 4)
    first, second = found.kinds
    assert (first.name, first.status, first.keys, first.of, first.message) == (one.name, "wrong", 2, 3, "at 3")
    assert (second.name, second.status, second.keys, second.of) == ("other", "spills", 1, 1)
    assert "2 of 3 (66.7%) wrong in try" in repr(found)


def test_nothing_failed(tmp_path: Path) -> None:
    """An empty store."""
    assert failed(tmp_path).kinds == ()
