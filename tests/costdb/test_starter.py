"""Starter rows lie below a store's own; models learnt from them; held-out accuracy."""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock, patch

import numpy as np
import pytest

from tensor_graphs import settings
from tensor_graphs.backends.tuning.schedule_search import ScheduleSearch
from tensor_graphs.costdb.keys.key import KernelKey, Work
from tensor_graphs.costdb.price import gaussian_process, learnt, predict
from tensor_graphs.costdb.price.predict import SHIPPED_FACTOR, Predictor, Price, Query
from tensor_graphs.costdb.price.related_kernels import RelatedKernels
from tensor_graphs.costdb.reports.reports import CostStoreWarning
from tensor_graphs.costdb.store import starter
from tensor_graphs.costdb.store.accuracy import Accuracy, accuracy, regret, tau
from tensor_graphs.costdb.store.schema import FailureRow, TimingRow, checked
from tensor_graphs.costdb.store.snapshot import Snapshot
from tensor_graphs.costdb.store.store import Store
from tensor_graphs.errors import CostStoreError
from tensor_graphs.extract.search.measurement_state import MIN_CERTAINTY
from tensor_graphs.writing.files import write_bytes

Make = Callable[..., TimingRow]
HERE, OTHER = "gpu:this:sm90", "gpu:other:sm90"


def row(make: Make, us: float, n: int = 1024, *, m: int = 64, device: str = HERE) -> TimingRow:
    """A cold timing of a kernel at size n, with a schedule of one parameter."""
    made = make(us, n, device=device, schedule=(("m", m),), work=Work(1.0, 100.0 * n))
    return replace(made, regime="cold")


def exported(folder: Path, rows: list[TimingRow | FailureRow], max_bytes: int = starter.MAX_BYTES) -> Path:
    """A folder of starter files made from rows."""
    store = Store(folder / "source")
    store.add(rows)
    starter.export_starter(store.root, folder / "starter", max_bytes)
    return folder / "starter"


def price(store: Store, timed: TimingRow) -> Price:
    return store.price([Query(timed.key, timed.work)], regime="cold")[0]


def above(root: Path, folder: Path, device: str = HERE) -> Store:
    """A store in an empty folder above starter rows."""
    store = Store(root / "own", starter=lambda: [device])
    with settings.override(starter=str(folder)):
        assert store.snapshot is not None  # loads
    return store


def test_shipped_rows_count_until_there_is_a_row_of_this_machine(tmp_path: Path, timing: Make) -> None:
    store = above(tmp_path, exported(tmp_path, [row(timing, 50.0)]))
    shipped = price(store, row(timing, 50.0))
    assert (shipped.source, shipped.shipped, shipped.us) == ("measured", True, 50.0)
    assert shipped.low < MIN_CERTAINTY * shipped.us < shipped.us * SHIPPED_FACTOR <= shipped.high, (
        "measured again first"
    )
    store.add([row(timing, 70.0)])
    own = price(store, row(timing, 50.0))
    assert (own.source, own.shipped, own.us) == ("measured", False, 70.0)
    assert len(Store(store.root).snapshot) == 1, "shipped rows are never written into a store"


def test_a_store_reads_starter_rows_only_if_asked(tmp_path: Path, timing: Make) -> None:
    folder = exported(tmp_path, [row(timing, 50.0)])
    with settings.override(starter=str(folder)):
        assert price(Store(tmp_path / "own"), row(timing, 50.0)).source == "bound"
    with settings.override(starter="none"):
        assert price(Store(tmp_path / "own", starter=lambda: [HERE]), row(timing, 50.0)).source == "bound"
    with settings.override(starter=str(tmp_path / "missing")), pytest.raises(CostStoreError):
        Store(tmp_path / "own", starter=lambda: [HERE]).snapshot  # noqa: B018


def test_rows_of_another_model_of_device_only_predict(tmp_path: Path, timing: Make) -> None:
    store = above(tmp_path, exported(tmp_path, [row(timing, 50.0 + i, 1000 + i, device=OTHER) for i in range(5)]))
    found = price(store, row(timing, 50.0, 1002))
    assert found.source == "predicted" and not found.shipped and found.us == pytest.approx(52.0, rel=0.1)


def test_damaged_starter_files_are_left_out_with_a_warning(tmp_path: Path, timing: Make) -> None:
    folder = exported(tmp_path, [row(timing, 50.0)])
    (file,) = folder.glob("*.parquet")
    file.write_bytes(file.read_bytes()[:-20])
    store = Store(tmp_path / "own", starter=lambda: [HERE])
    with settings.override(starter=str(folder)), pytest.warns(CostStoreWarning, match="starter rows"):
        assert price(store, row(timing, 50.0)).source == "bound"


def test_an_export_keeps_the_fastest_schedules_and_what_failed(tmp_path: Path, timing: Make) -> None:
    rows: list[TimingRow | FailureRow] = [row(timing, 50.0 + m, m=m) for m in range(1, 400)]
    failed = row(timing, 1.0, m=999)
    rows += [FailureRow(key=failed.key, work=failed.work, status="wrong", message="x" * 400)]
    small = exported(tmp_path / "small", rows, 16_000)
    snapshot = above(tmp_path, small).snapshot
    kept = [row(timing, 0.0 + 50 + m, m=m) for m in range(1, 400)]
    known = [snapshot.has(r.key.digest) for r in kept]
    assert 0 < sum(known) < 399 and known == sorted(known, reverse=True)
    assert sum(f.stat().st_size for f in small.glob("*.parquet")) <= 16_000
    assert above(tmp_path / "all", exported(tmp_path / "all", rows[200:])).failures([failed.key])
    with pytest.raises(CostStoreError, match="more than 100 bytes"):
        exported(tmp_path / "none", rows, 100)


def test_the_fastest_shipped_schedules_are_tried_first() -> None:
    search = ScheduleSearch([{"m": 1}, {"m": 2}], confirm=[{"m": 7}])
    search.record({"m": 3}, 5.0)
    assert search.more(look=True) == [{"m": 7}]
    search.record({"m": 7}, 4.0)
    assert {"m": 7} not in search.more()


# ---------------------------------------------------------------- models
def drawn(count: int = 400) -> tuple[gaussian_process.Array, gaussian_process.Array]:
    """Feature rows of which five vary, and targets with a step and an interaction."""
    rows = np.zeros((count, learnt.COUNT))
    rows[:, :5] = np.random.default_rng(0).uniform(0, 8, (count, 5))
    return rows, np.where(rows[:, 0] > 4, rows[:, 1], -rows[:, 2]) + (rows[:, 3] > 2)


def fitted(rows: gaussian_process.Array, wanted: gaussian_process.Array) -> gaussian_process.GaussianProcess:
    return gaussian_process.fit(rows, wanted, np.ones(rows.shape[1]))


def test_gaussian_processes_learn_steps_and_interactions() -> None:
    rows, wanted = drawn()
    model = fitted(rows[:300], wanted[:300])
    error = np.abs(model.predict(rows[300:]) - wanted[300:]).mean()
    assert error < 0.4 * np.abs(wanted[300:] - wanted[:300].mean()).mean()
    assert np.array_equal(model.predict(rows), fitted(rows[:300], wanted[:300]).predict(rows))
    assert model.predict(rows[:300] + 1e6).mean() < wanted[:300].mean(), "cautious far from all rows"
    residuals = wanted[300:] - model.predict(rows[300:])
    assert 0.6 < np.mean((residuals >= model.low) & (residuals <= model.high)) < 0.95, "deciles of rows left out"


def test_models_survive_as_bytes_and_others_are_refused() -> None:
    rows, wanted = drawn(60)
    model = fitted(rows, wanted)
    content = learnt.encode(model)
    assert np.array_equal(learnt.decode(content).predict(rows), model.predict(rows))
    of_other_features = fitted(rows[:, :5], wanted)
    bad = replace(model, high=math.nan)
    for wrong in (b"", b"PK", content[:-9], learnt.encode(of_other_features), learnt.encode(bad)):
        with pytest.raises(ValueError):
            learnt.decode(wrong)


def test_a_stored_model_that_unpacks_to_much_is_refused_before_it_is_unpacked() -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("edges.npy", "w") as part:
        np.lib.format.write_array_header_1_0(part, {"descr": "|u1", "fortran_order": False, "shape": (1 << 27,)})
        for _ in range(128):
            part.write(bytes(1 << 20))
    assert len(packed.getvalue()) < 1 << 18
    with pytest.raises(ValueError, match="bytes unpacked"):
        learnt.decode(packed.getvalue())


def test_a_shipped_model_tells_schedules_apart(tmp_path: Path, timing: Make, key: Callable[..., KernelKey]) -> None:
    times = lambda n, m: 1e-3 * n * (1 + abs(math.log2(m) - 6))
    rows = [row(timing, times(n, 2**p), n, m=2**p) for n in range(1000, 1040) for p in range(8)]
    store = above(tmp_path, exported(tmp_path, list(rows)))
    assert store.snapshot.learnt.models
    asked = [row(timing, 1.0, 5000, m=2**p) for p in range(8)]
    text = [p.us for p in store.price([Query(r.key, r.work) for r in asked], regime="cold")]
    assert min(range(8), key=text.__getitem__) == 6
    features = Mock(side_effect=learnt.features)
    with patch.object(learnt, "features", features):
        again = [p.us for p in store.price([Query(r.key, r.work) for r in asked], regime="cold")]
        store.price([Query(row(timing, 1.0, 5001, m=8).key, asked[0].work)], regime="cold")
    assert again == text and [len(call.args[0]) for call in features.call_args_list] == [1], (
        "each key is predicted once"
    )


def test_what_is_kept_of_shipped_rows_changes_no_price(tmp_path: Path, timing: Make) -> None:
    times = lambda n, p: 1e-3 * n * (1 + abs(p - 6)) + 0.1 * (n % 7)
    folder = exported(tmp_path, [row(timing, times(n, p), n, m=2**p) for n in range(1000, 1040) for p in range(8)])
    other = replace(row(timing, 1.0).key, kernel="other", name="sub")
    asked = [row(timing, 1.0, n, m=m, device=d) for n in (900, 1010, 5000) for m in (8, 64) for d in (HERE, OTHER)]
    queries = [Query(r.key, r.work) for r in asked] + [Query(other, Work(9.0, 1e6))]
    own = [row(timing, 9.0, 1010, m=64), replace(row(timing, 9.0, 70), key=replace(other, device=OTHER))]
    copied = replace(own[0].key, kernel="copy", name="copy", family="calibration")
    calibration = replace(own[0], key=copied, work=Work(0.0, 9e7), samples=(30.0,) * 3)
    fits = Mock(side_effect=RelatedKernels)
    plain = Snapshot()
    plain.extend_table(starter.read(file := next(folder.glob("*.parquet"))))
    model = starter.read_model(file)
    assert model is not None
    plain.learnt.models[HERE] = model
    unshared = Predictor(plain, "cold")
    first, wanted = unshared.price(queries[:1]), unshared.price(queries)
    with patch.object(predict, "RelatedKernels", fits), patch.object(starter, "read", wraps=starter.read) as read:
        for added in ([], own, [calibration]):
            for store in (above(tmp_path, folder), above(tmp_path, folder, OTHER)):
                own_rows = bool(store.snapshot.not_included())
                assert own_rows or store.price(queries[:1], regime="cold") == first
                assert own_rows or store.price(queries, regime="cold") == wanted, "as from the rows alone"
                store.add(added)
                found = store.price(queries, regime="cold")
                assert found == Predictor(store.snapshot, "cold").price(queries), "as without the kept groups"
        assert read.call_count == 1, "the file serves both devices, and is read once"
        fits.reset_mock()
        above(tmp_path / "2", folder).price(queries, regime="cold")
        assert not fits.called, "groups without own rows are fitted once"


def test_changed_starter_files_are_read_again(tmp_path: Path, timing: Make) -> None:
    folder = exported(tmp_path, [row(timing, 50.0)])
    assert price(above(tmp_path, folder), row(timing, 1.0)).us == 50.0
    exported(tmp_path / "2", [row(timing, 70.0)])
    [path] = folder.glob("*.parquet")
    write_bytes(path, (tmp_path / "2" / "starter" / path.name).read_bytes())
    assert price(above(tmp_path, folder), row(timing, 1.0)).us == 70.0
    assert price(Store(tmp_path / "own"), row(timing, 1.0)).source == "bound"


# ---------------------------------------------------------------- accuracy
def test_rank_correlation_and_regret() -> None:
    assert tau([(1, 1), (2, 2), (3, 3)]) == 1.0 and tau([(1, 3), (2, 2), (3, 1)]) == -1.0
    assert math.isnan(tau([(1.0, 1.0), (1.001, 5.0)])), "ties are not ranked"
    assert regret([(10.0, 9), *((12.0, n) for n in range(5))]) == pytest.approx(0.2)


def test_accuracy_of_a_store(tmp_path: Path, timing: Make) -> None:
    store = Store(tmp_path)
    store.add(
        [row(timing, 1e-3 * n * (1 + m / 8), n, m=m) for n in range(1000, 1030) for m in (1, 2, 4, 8, 16, 32, 64, 128)]
    )
    kernels, calls, schedules, bare = accuracy(store.root, store.snapshot).found
    assert [a.held_out for a in (kernels, calls, schedules, bare)] == ["kernels", "calls", "schedules", "roofline"]
    assert (calls.rows, calls.calls, calls.families[0].rows) == (240, 30, 240)
    assert calls.mape < 0.3 and calls.tau_schedules > 0.8 and calls.regret < 0.05
    assert schedules.mape < bare.mape and math.isnan(bare.tau_schedules) is False
    assert Accuracy.of_json(calls.to_json()) == calls


def test_the_packages_own_starter_rows_are_small_and_whole() -> None:
    files = sorted(starter.FOLDER.glob("*"))
    assert sum(f.stat().st_size for f in files) <= 2 << 20
    assert sum(f.stat().st_size for f in files if f.suffix == starter.MODEL) <= 150_000
    tables = {f.stem: starter.read(f) for f in files if f.suffix == ".parquet"}
    assert tables and all(t.num_rows for t in tables.values())
    for stem, table in tables.items():
        valid, skipped = checked(table)  # reading leaves these checks out
        assert not skipped and valid.num_rows == table.num_rows
        (device,) = set(table.column("device").to_pylist())
        assert starter.files_for(starter.FOLDER, [device]) == [starter.FOLDER / f"{stem}.parquet"]
        assert set(table.column("message").to_pylist()) == {""}, "nothing of the machine that measured"
        assert starter.read_model(starter.FOLDER / f"{stem}.parquet") is not None
