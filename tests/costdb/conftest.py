"""Builders of keys and rows shared by the tests of the cost store."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tensor_graphs.costdb.keys.key import KernelKey, Work
from tensor_graphs.costdb.store.schema import TimingRow


@pytest.fixture
def key() -> Callable[..., KernelKey]:
    """`key(size, **fields)`: a pointwise kernel over `size` values."""

    def build(size: int = 1, **fields: Any) -> KernelKey:
        basic: dict[str, Any] = {
            "kernel": "body", "name": "add", "family": "pointwise", "backend": "numpy", "emitter": "1",
            "source": "text", "shapes": ((size,),), "dtypes": ("float32",), "device": "cpu:test",
        }  # fmt: skip
        return KernelKey(**(basic | fields))

    return build


@pytest.fixture
def timing(key: Callable[..., KernelKey]) -> Callable[..., TimingRow]:
    """`timing(us, size, run=..., **key fields)`: a row of three samples around `us`."""

    def build(us: float = 10.0, size: int = 1, **fields: Any) -> TimingRow:
        own = {name: fields.pop(name) for name in ("run", "time_us", "regime", "samples", "work") if name in fields}
        row: dict[str, Any] = {"samples": (us, us * 1.01, us * 0.99), "work": Work(size, 12.0 * size)}
        return TimingRow(key=key(size, **fields), **(row | own))

    return build


@pytest.fixture(autouse=True)
def strict_warnings() -> Iterator[None]:
    """A warning nobody expects fails the test."""
    from tensor_graphs.costdb.reports.reports import CostStoreWarning

    with warnings.catch_warnings():
        warnings.simplefilter("error", CostStoreWarning)
        yield


@pytest.fixture(autouse=True)
def none_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each store object reads the files, as one in another process does."""
    monkeypatch.setattr("tensor_graphs.costdb.store.kept_rows._kept.most", 0)
