"""Rows: what is accepted, what is skipped and why, and what is computed from the samples."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensor_graphs.costdb.keys.key import IDENTITY_FIELDS, KernelKey, Work, digest_of
from tensor_graphs.costdb.store import schema, shards, starter, store
from tensor_graphs.costdb.store.schema import (
    MAX_TIME_US,
    MIN_TIME_US,
    SHIPPED,
    AccuracyRow,
    FailureRow,
    TimingRow,
    checked,
    to_table,
)
from tensor_graphs.costdb.store.snapshot import Snapshot

from ..only_in import only_in

nan, inf = float("nan"), float("inf")


@settings(deadline=None, max_examples=50)
@given(st.lists(st.lists(st.floats(0.01, 1e9), min_size=1, max_size=9), min_size=1, max_size=6))
def test_medians_and_deviations_are_those_of_the_samples(series: list[list[float]]) -> None:
    key = KernelKey("k", "n", "f", "numpy", "1", "s")
    table, skipped = checked(to_table([TimingRow(key=key, samples=samples) for samples in series]))
    assert not skipped
    medians = [float(np.median(samples)) for samples in series]
    mads = [float(np.median(np.abs(np.array(samples) - middle))) for samples, middle in zip(series, medians)]
    np.testing.assert_allclose(table["median_us"].to_numpy(), medians, rtol=1e-12)
    np.testing.assert_allclose(table["mad_us"].to_numpy(), mads, rtol=1e-9, atol=1e-9)
    assert table["n"].to_pylist() == [len(samples) for samples in series]


@pytest.mark.parametrize(
    "samples", [(), (nan,), (0.0,), (-1.0,), (inf,), (1e-3,), (1e11,), (5.0, 5.0, nan), (5.0, -5.0)]
)
def test_impossible_latencies_are_skipped_and_the_others_kept(timing: Callable[..., TimingRow], samples: Any) -> None:
    table, skipped = checked(to_table([timing(samples=samples), timing(7.0, 2)]))
    assert skipped == {"bad latency": 1} and table.num_rows == 1
    assert table["median_us"].to_pylist() == [7.0]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"time_us": 0}, "absurd date"),
        ({"time_us": MIN_TIME_US - 1}, "absurd date"),
        ({"time_us": MAX_TIME_US + 1}, "absurd date"),
        ({"regime": "lukewarm"}, "unknown regime"),
    ],
)
def test_other_bad_rows_are_skipped(timing: Callable[..., TimingRow], fields: dict[str, Any], reason: str) -> None:
    table, skipped = checked(to_table([timing(**fields), timing()]))
    assert skipped == {reason: 1} and table.num_rows == 1


@pytest.mark.parametrize(
    ("field", "text"),
    [("shapes", "not json"), ("shapes", "[[-1]]"), ("shapes", "[[1.5]]"), ("shapes", "[" * 9000), ("shapes", "[[" + "9" * 40 + "]]"),
     ("strides", "null"), ("strides", '[["a"]]'), ("dtypes", '["float99"]'), ("dtypes", "[3]"), ("schedule", "null"), ("schedule", "[[]]"),
     ("schedule", '[[["m"],1]]'), ("constants", "x")],
)  # fmt: skip
def test_rows_of_keys_of_another_form_are_skipped(timing: Callable[..., TimingRow], field: str, text: str) -> None:
    """Their digest is that of their texts; one such row in a team's store ended every search."""
    columns = {n: timing().key.columns[n] for n in IDENTITY_FIELDS} | {field: text}
    table = to_table([timing(), timing(2.0, 2)])
    for name, value in (columns | {"digest": digest_of([columns[n] for n in IDENTITY_FIELDS])}).items():
        changed = pa.array([value, table[name].to_pylist()[1]])
        table = table.set_column(table.schema.get_field_index(name), name, changed)
    kept, skipped = checked(table)
    assert skipped == {"malformed key": 1} and kept["median_us"].to_pylist() == [2.0]


def test_rows_whose_key_is_forged_are_skipped(timing: Callable[..., TimingRow]) -> None:
    table = to_table([timing(1.0, 1), timing(2.0, 2)])
    swapped = table.set_column(
        table.schema.get_field_index("digest"), "digest", pa.array(table["digest"].to_pylist()[::-1])
    )
    kept, skipped = checked(swapped)
    assert skipped == {"key does not match its digest": 2} and kept.num_rows == 0


@pytest.mark.parametrize(
    ("column", "value", "reason"),
    [
        ("kind", "virus", "unknown kind"),
        ("flops", -1.0, "bad work"),
        ("bytes", nan, "bad work"),
        ("name", None, "null"),
        ("name", "x" * 200_000, "oversized text"),
        ("samples", None, "null"),
        ("samples", [1.0, None], "bad latency"),
    ],
)
def test_foreign_columns_are_judged(timing: Callable[..., TimingRow], column: str, value: Any, reason: str) -> None:
    table = to_table([timing(), timing(1.0, 2)])
    place = table.schema.get_field_index(column)
    values = [value, table[column].to_pylist()[1]]
    kept, skipped = checked(table.set_column(place, column, pa.array(values, type=table.schema.field(place).type)))
    assert skipped == {reason: 1} and kept.num_rows == 1


def test_claimed_medians_are_not_believed(timing: Callable[..., TimingRow]) -> None:
    table = to_table([timing(50.0)])
    lied = table.set_column(table.schema.get_field_index("median_us"), "median_us", pa.array([0.5]))
    assert checked(lied)[0]["median_us"].to_pylist() == [50.0]


def test_accuracy_and_failure_rows(key: Callable[..., KernelKey]) -> None:
    rows = [
        AccuracyRow(key=key(), rel_fro=1e-7, max_abs=inf),
        AccuracyRow(key=key(), rel_fro=nan),
        FailureRow(key=key(), status="crash", stage="run", message="x" * 10_000),
    ]
    table, skipped = checked(to_table(rows))
    assert skipped == {"NaN accuracy": 1}
    assert table["kind"].to_pylist() == ["accuracy", "failure"]
    assert len(table["message"].to_pylist()[1]) == 500


def test_a_row_needs_no_work(key: Callable[..., KernelKey]) -> None:
    assert TimingRow(key=key(), samples=(1.0,)).work == Work(0.0, 0.0)


@pytest.mark.parametrize("year", [1970, 2019, 2041, 2400])
def test_a_wrong_clock_costs_no_rows(
    year: int, tmp_path: Path, timing: Callable[..., TimingRow], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of a wrong clock are kept, and rows of a right one are read by a wrong one; so are starter rows."""
    right = timing(1.0)
    only_in(monkeypatch, schema, "time", time_ns=lambda: int((year - 1970) * 365.25 * 86_400e9))
    table, skipped = checked(to_table([timing(2.0, 2), right]))
    assert table.num_rows == 2 and not skipped
    path = tmp_path / "cpu-a.parquet"
    path.write_bytes(shards.encode(to_table([timing(3.0, run=SHIPPED)])))
    assert starter.read(path).num_rows == 1


def test_a_starter_file_without_rows_adds_none(tmp_path: Path, timing: Callable[..., TimingRow]) -> None:
    path = tmp_path / "cpu-a.parquet"
    path.write_bytes(shards.encode(to_table([timing(3.0, run="another")])))
    table, snapshot = starter.read(path), Snapshot()
    snapshot.extend_table(table)
    assert table.num_rows == 0 and not len(snapshot)


def test_a_column_may_be_added(
    timing: Callable[..., TimingRow], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that lack a column of `LATER` are read: their rows have its empty value. New rows have it."""
    old, new = timing(5.0), timing(7.0, 2)
    store.Store(tmp_path).add([old])
    monkeypatch.setitem(schema.COLUMNS, "joules", "double")
    for module in (schema, shards):
        monkeypatch.setattr(module, "LATER", frozenset({"joules"}))
    object.__setattr__(new, "joules", 2.5)  # as a field of the class would be
    after = store.Store(tmp_path)
    after.add([new])
    after.flush()
    assert [len(after.samples([row.key])) for row in (old, new)] == [1, 1]
    tables = [checked(shards.read(shard.path))[0] for shard in shards.find(tmp_path)]
    found = {row["median_us"]: row["joules"] for table in tables for row in table.to_pylist()}
    assert np.isnan(found[5.0]) and found[7.0] == 2.5 and not shards.quarantined(tmp_path)
