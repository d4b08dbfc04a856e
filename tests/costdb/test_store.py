"""The store: what is added is found again, summarised robustly, the same in every process and every order."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tensor_graphs import settings
from tensor_graphs.costdb.keys.key import KernelKey, Work
from tensor_graphs.costdb.price.predict import Query
from tensor_graphs.costdb.store.schema import AccuracyRow, FailureRow, TimingRow
from tensor_graphs.costdb.store.store import Store, default_root, shards
from tensor_graphs.errors import CostStoreError, UnwritableError

from .reading import lookup

Make = Callable[..., TimingRow]


def test_added_rows_are_found_at_once_and_by_other_stores(tmp_path: Path, timing: Make) -> None:
    store, reader = Store(tmp_path), Store(tmp_path)
    rows = [timing(10.0 * size, size) for size in range(1, 20)]
    answer = store.add(rows)
    assert (answer.rows, answer.durable, len(answer.shards)) == (19, True, 1)
    for seen in (store, reader):
        found = lookup(seen, [row.key for row in rows])
        assert [found[row.key.digest].us for row in rows] == [pytest.approx(10.0 * size) for size in range(1, 20)]
    assert lookup(Store(tmp_path), [rows[0].key.digest]).keys() == {rows[0].key.digest}


def test_unknown_keys_are_absent(tmp_path: Path, key: Callable[..., KernelKey], timing: Make) -> None:
    store = Store(tmp_path)
    store.add([timing()])
    assert lookup(store, [key(999)]) == {} and store.failures([key(999)]) == {} and store.accuracies([key()]) == {}


def test_regimes_are_never_mixed(tmp_path: Path, timing: Make) -> None:
    store = Store(tmp_path)
    store.add([timing(10.0, regime="hot"), timing(50.0, regime="cold")])
    digest = timing().key.digest
    assert lookup(store, [digest])[digest].us == pytest.approx(10.0)
    assert lookup(store, [digest], regime="cold")[digest].us == pytest.approx(50.0)


def test_one_wild_run_does_not_move_the_summary(tmp_path: Path, timing: Make) -> None:
    store = Store(tmp_path)
    store.add([timing(us, run=f"run{us}") for us in (100.0, 101.0, 99.0, 102.0, 0.01)])
    (found,) = lookup(store, [timing().key]).values()
    assert found.us == pytest.approx(100.0, rel=0.02) and found.n == 5 and found.samples == 15
    assert 90.0 < found.low <= found.us <= found.high < 110.0


def test_many_rows_of_one_run_count_as_one_run(tmp_path: Path, timing: Make) -> None:
    store = Store(tmp_path)
    poisoned = [timing(1.0, run="bad", samples=(1.0 + shift / 100,)) for shift in range(50)]
    store.add([*poisoned, *(timing(100.0, run=f"good{i}") for i in range(3))])
    (found,) = lookup(store, [timing().key]).values()
    assert found.us == pytest.approx(100.0)


def test_failures_and_accuracies_come_back(tmp_path: Path, key: Callable[..., KernelKey]) -> None:
    store = Store(tmp_path)
    store.add([
        FailureRow(key=key(), status="timeout", stage="run", message="1", time_us=1_700_000_000_000_002),
        FailureRow(key=key(), status="crash", stage="compile", message="0", time_us=1_700_000_000_000_001),
        AccuracyRow(key=key(), rel_fro=1e-7, max_ulp=3.0),
    ])  # fmt: skip
    for seen in (store, Store(tmp_path)):
        assert [record.status for record in seen.failures([key()])[key().digest]] == ["crash", "timeout"]
        (accuracy,) = seen.accuracies([key()])[key().digest]
        assert (accuracy.rel_fro, accuracy.max_ulp, accuracy.reference) == (1e-7, 3.0, "float64")
        assert lookup(seen, [key()]) == {}


def test_all_samples_are_kept(tmp_path: Path, timing: Make) -> None:
    row = timing(samples=(3.0, 1.0, 2.0), run="r")
    store = Store(tmp_path)
    store.add([row])
    ((digest, regime, run, _, samples),) = store.samples([row.key])
    assert (digest, regime, run, samples) == (row.key.digest, "hot", "r", [3.0, 1.0, 2.0])


def test_the_snapshot_id_names_the_set_of_shards(tmp_path: Path, timing: Make) -> None:
    rows = [timing(float(size), size, run="r", time_us=1_700_000_000_000_000) for size in range(1, 4)]
    one, other = Store(tmp_path / "one"), Store(tmp_path / "other")
    empty = one.snapshot_id()
    for row in rows:
        one.add([row])
    for row in reversed(rows):
        other.add([row])
    assert one.snapshot_id() == other.snapshot_id() == Store(tmp_path / "one").snapshot_id() != empty
    one.add([timing(9.0, 9)])
    assert one.snapshot_id() != other.snapshot_id()


def test_prices_do_not_depend_on_arrival_order(tmp_path: Path, timing: Make, key: Callable[..., KernelKey]) -> None:
    rows = [timing(3.0 * size**0.9, size, run="r", time_us=1_700_000_000_000_000) for size in (10, 1000, 50, 700, 3)]
    one, other = Store(tmp_path / "one"), Store(tmp_path / "other")
    one.add(rows)
    for row in reversed(rows):
        other.add([row])
        other.price([Query(key(5), Work(5.0, 60.0))])  # fit on the way: learning must not differ from fitting afresh
    queries = [Query(key(size), Work(size, 12.0 * size)) for size in (4, 50, 333)]
    assert one.price(queries) == other.price(queries) == Store(tmp_path / "other").price(queries)


def test_a_frozen_store_sees_nothing_new_but_keeps_it(tmp_path: Path, timing: Make) -> None:
    Store(tmp_path).add([timing(10.0, 1)])
    frozen = Store(tmp_path, frozen=True)
    before = frozen.snapshot_id()
    assert frozen.add([timing(20.0, 2)]).durable
    frozen.refresh()
    assert lookup(frozen, [timing(size=2).key]) == {} and frozen.snapshot_id() == before
    assert lookup(Store(tmp_path), [timing(size=2).key])


def test_merge_takes_over_what_is_new(tmp_path: Path, timing: Make) -> None:
    one, other = Store(tmp_path / "one"), Store(tmp_path / "other")
    one.add([timing(10.0, 1)])
    other.add([timing(20.0, 2, device="gpu")])
    first, second = one.merge(other.root), one.merge(other.root)
    assert (first.copied, first.present, second.copied, second.present) == (1, 0, 0, 1)
    assert len(lookup(one, [timing(size=1).key, timing(size=2, device="gpu").key])) == 2
    with pytest.raises(CostStoreError):
        one.merge(tmp_path / "nowhere")


def test_a_shard_in_two_places_counts_once(tmp_path: Path, timing: Make) -> None:
    store = Store(tmp_path)
    store.add([timing(run="r")])
    (shard,) = shards.find(tmp_path)
    (tmp_path / "v1" / "copy").mkdir()
    (tmp_path / "v1" / "copy" / shard.path.name).write_bytes(shard.path.read_bytes())
    (found,) = lookup(Store(tmp_path), [timing().key]).values()
    assert found.samples == 3


def test_compacting_keeps_every_row_once(tmp_path: Path, timing: Make) -> None:
    store = Store(tmp_path)
    rows = [timing(float(size), size) for size in range(1, 9)]
    for row in rows:
        store.add([row])
    store.add([*rows, timing(5.0, 1, device="gpu")])  # duplicates of all
    watcher = Store(tmp_path)
    before = lookup(watcher, [row.key for row in rows])
    report = store.compact()
    assert (report.shards_before, report.shards_after, report.rows_before, report.rows_after) == (10, 2, 17, 9)
    watcher.refresh()
    assert lookup(watcher, [row.key for row in rows]) == before == lookup(Store(tmp_path), [row.key for row in rows])
    assert store.compact().rows_after == 9 and store.check().ok


def test_rows_of_a_cache_that_saw_both_old_and_compacted_shards(tmp_path: Path, timing: Make) -> None:
    store = Store(tmp_path)
    store.add([timing(1.0, 1)])
    store.add([timing(2.0, 2)])
    old = {shard.path: shard.path.read_bytes() for shard in shards.find(tmp_path)}
    store.compact()
    for path, content in old.items():
        path.write_bytes(content)
    assert len(lookup(Store(tmp_path), [timing(size=1).key, timing(size=2).key])) == 2
    for path in old:
        path.unlink()
    found = lookup(Store(tmp_path), [timing(size=1).key, timing(size=2).key])
    assert [measurement.n for measurement in found.values()] == [1, 1]


def test_removed_shards_disappear(tmp_path: Path, timing: Make) -> None:
    store = Store(tmp_path)
    store.add([timing()])
    assert lookup(store, [timing().key])
    shards.find(tmp_path)[0].path.unlink()
    assert not lookup(Store(tmp_path), [timing().key])


def test_export_is_one_file_that_others_can_read(tmp_path: Path, timing: Make) -> None:
    store = Store(tmp_path / "db")
    store.add([timing(1.0, 1)])
    store.add([timing(2.0, 2)])
    assert store.export(tmp_path / "all.parquet") == 2
    assert pq.read_table(tmp_path / "all.parquet")["median_us"].to_pylist() == [1.0, 2.0]
    assert store.export(tmp_path / "new" / "folder.parquet") == 2  # missing folders are created
    with pytest.raises(UnwritableError):
        store.export(tmp_path / "all.parquet" / "below_a_file.parquet")


def test_reports_have_every_form(tmp_path: Path, timing: Make) -> None:
    store = Store(tmp_path)
    store.add([timing(size**0.9 + 3, size, name="<script>alert(1)</script>\n") for size in range(1, 40)])
    stats, check = store.stats(), store.check()
    assert json.loads(json.dumps(stats.to_json()))["keys"] == 39
    assert json.loads(json.dumps(check.to_json()))["ok"] is True and check.ok
    assert "pointwise on numpy" in repr(stats) and "held out" in repr(stats)
    html = stats._repr_html_() + check._repr_html_()
    assert "<script" not in html and html.count("<table>") == 2
    (family,) = stats.families
    assert family.keys == family.held_out == 39 and 0 <= family.median_error <= family.p90_error < 1


def test_nothing_is_an_answer_too(tmp_path: Path) -> None:
    store = Store(tmp_path / "new")
    assert store.add([]).rows == 0 and store.compact().rows_after == 0
    assert store.check().ok and store.stats().keys == 0 and store.export(tmp_path / "e.parquet") == 0


def test_the_default_root_follows_the_settings(tmp_path: Path) -> None:
    with settings.override(costdb=str(tmp_path / "x")):
        assert default_root() == Store().root == tmp_path / "x"
    with settings.override(costdb="", home=str(tmp_path)):
        assert Store().root == tmp_path / "costdb"


def test_a_store_without_rows_opens_no_database(tmp_path: Path) -> None:
    assert not Store(tmp_path).snapshot.kernels() and not list(tmp_path.rglob("*.duckdb"))
