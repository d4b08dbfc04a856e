"""The page of the cost store: plots of what is in it, and nothing that its texts could run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tensor_graphs.cli.app import run
from tensor_graphs.costdb.keys.key import KernelKey, Work
from tensor_graphs.costdb.store.schema import FailureRow, TimingRow
from tensor_graphs.costdb.store.store import Store
from tensor_graphs.report.store_page import repeated, store_page


def key(size: int, name: str = "add") -> KernelKey:
    return KernelKey(
        kernel=name, name=name, family="pointwise", backend="numpy", emitter="1", source="text", shapes=((size,),),
        dtypes=("float32",), device="cpu:test",
    )  # fmt: skip


def filled(root: Path) -> Store:
    store = Store(root)
    rows = [TimingRow(key=key(n, "add" if n % 2 else "mul"), work=Work(n, 12.0 * n), samples=(n * 1.0, n * 1.1), run=f"r{r}") for n in range(1000, 1012) for r in range(1 + (n == 1003))]  # fmt: skip
    rows.append(TimingRow(key=key(5, "<script>alert(1)</script>"), work=Work(5, 60.0), samples=(3.0,), run="r"))
    rows.append(TimingRow(key=key(1003, "add"), work=Work(1003, 12036.0), samples=(4000.0,), run="slow"))
    store.add(rows)
    store.add([FailureRow(key=key(7), status="wrong", stage="check", message="<b>bold</b>")])
    return store


def test_the_page_shows_pairs_coverage_repeats_and_failures(tmp_path: Path) -> None:
    store = filled(tmp_path)
    pairs = store.predictor().held_out_pairs()
    assert len(pairs) >= 12 and all(
        0.5 < p.predicted_us / p.measured_us < 2
        for p in pairs
        if p.measured_us < 2000 and p.name != "<script>alert(1)</script>"
    )
    (several,) = repeated(store.snapshot)
    assert several.name == "add" and len(several.us) == 3 and several.spread == pytest.approx(4000 / 1053.15, rel=0.05)
    page = store_page(store)
    assert page.count("<circle") == len(pairs) and "over time" in page
    assert "<script" not in page and "<b>bold" not in page and "http:" not in page


def test_an_empty_store_has_a_page_and_the_command_writes_it(tmp_path: Path) -> None:
    assert "Nothing was measured yet" in store_page(Store(tmp_path / "empty"))
    filled(tmp_path / "store")
    assert run(["db", "page", "--costdb", str(tmp_path / "store"), "-o", str(tmp_path / "page.html"), "--json"]) == 0
    assert "predicted against measured" in (tmp_path / "page.html").read_text()
