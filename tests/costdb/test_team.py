"""A team's store: shards shared over a folder or an object store, read below the own rows, never trusted alone."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import tensor_graphs as tg
from tensor_graphs import settings
from tensor_graphs.costdb.price.predict import Query
from tensor_graphs.costdb.store import shards
from tensor_graphs.costdb.store.schema import FORMAT, TimingRow, arrow_schema
from tensor_graphs.costdb.store.store import Store
from tensor_graphs.costdb.store.team import mirror_of, place_of, pull, push
from tensor_graphs.errors import CostStoreError

Make = Callable[..., TimingRow]


@pytest.fixture(params=["folder", "object store"])
def team(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "folder":
        (tmp_path / "team").mkdir()
        return str(tmp_path / "team")
    pytest.importorskip("fsspec", reason="the fleet extra is not installed")
    return f"memory://{uuid.uuid4().hex}/costs"


def reader(root: Path) -> Store:
    """A store as searches open it: with the rows of others below its own."""
    return Store(root, starter=lambda: ())


def test_rows_of_others_are_read_below_the_own(tmp_path: Path, team: str, timing: Make) -> None:
    Store(tmp_path / "a").add([timing(10.0, 1, run="a"), timing(20.0, 2, run="a")])
    Store(tmp_path / "b").add([timing(11.0, 1, run="b")])
    assert [push(tmp_path / n, team).copied for n in "ab"] == [1, 1] and push(tmp_path / "a", team).present == 1
    own = timing(30.0, 2, run="c")
    Store(tmp_path / "c").add([own])
    with settings.override(home=str(tmp_path / "home"), team=team):
        store = reader(tmp_path / "c")
        theirs, mine = store.price([Query(timing(0.0, n).key, own.work) for n in (1, 2)])
        assert theirs.shipped and theirs.us == pytest.approx(10.5) and theirs.n == 2
        assert theirs.high > 1.2 * theirs.us, "to be measured again before a plan depends on it"
        assert not mine.shipped and mine.us == pytest.approx(30.0)
        assert store.snapshot_id() != Store(tmp_path / "c").snapshot_id()
        assert pull(team).present == 2
    assert not Store(tmp_path / "c").snapshot.has(timing(0.0, 1).key.digest), "only with the setting"


def test_a_single_run_of_the_team_neither_wins_nor_excludes(tmp_path: Path, team: str, timing: Make) -> None:
    slow = timing(1e6, run="poison")
    Store(tmp_path / "a").add([slow])
    push(tmp_path / "a", team)
    with settings.override(home=str(tmp_path / "home"), team=team):
        store = reader(tmp_path / "c")
        (price,) = store.price([Query(slow.key, slow.work)])
        assert price.shipped and price.low <= store.predictor().roofline(slow.key).us(slow.work)


def test_damaged_and_foreign_files_are_refused(tmp_path: Path, timing: Make) -> None:
    Store(tmp_path / "a").add([timing()])
    folder = tmp_path / "team"
    folder.mkdir()
    push(tmp_path / "a", str(folder))
    (shard,) = shards.find(folder)
    (shard.path.parent / f"{'0' * 64}.parquet").write_bytes(shard.path.read_bytes())
    (shard.path.parent / "../../../notes.parquet").resolve().write_bytes(b"text")
    content = bytearray(shard.path.read_bytes())
    content[40] ^= 1
    shard.path.write_bytes(content)
    found = pull(str(folder), tmp_path / "mirror")
    assert found.copied == 0 and set(found.bad_shards.values()) == {"sha256-differs"} and len(found.bad_shards) == 2
    assert not shards.find(tmp_path / "mirror")


def test_64_writers_at_once_lose_nothing(tmp_path: Path, timing: Make) -> None:
    (tmp_path / "team").mkdir()

    def write(n: int) -> None:
        Store(tmp_path / f"s{n}").add([timing(10.0 + n, n + 1, run=f"r{n}")])
        assert push(tmp_path / f"s{n}", str(tmp_path / "team")).copied == 1

    with ThreadPoolExecutor(64) as threads:
        list(threads.map(write, range(64)))
    assert pull(str(tmp_path / "team"), tmp_path / "mirror").copied == 64
    assert len(shards.find(tmp_path / "mirror")) == 64 and not shards.temporaries(tmp_path / "team")


def test_a_team_that_cannot_be_reached_is_a_warning_for_searches_and_an_error_for_commands(tmp_path: Path) -> None:
    with pytest.raises(CostStoreError, match="does not exist"):
        pull(str(tmp_path / "nowhere"))
    with (
        settings.override(home=str(tmp_path / "home"), team=str(tmp_path / "nowhere")),
        pytest.warns(UserWarning, match="was not refreshed"),
    ):
        assert len(reader(tmp_path / "c").snapshot) == 0


def test_a_poisoned_kernel_is_measured_before_it_is_chosen(tmp_path: Path) -> None:
    """Rows that make a slow kernel look 100 times faster do not decide the plan."""
    x, w = tg.input("x", (64, 256)), tg.param("w", (256, 256))
    given = {"params": {"w": np.ones((256, 256), np.float32)}, "backend": "numpy", "budget": 60.0}
    with settings.override(home=str(tmp_path / "home1"), costdb=str(tmp_path / "honest")):
        tg.optimize(tg.tanh(x @ w), **given)
    (tmp_path / "team").mkdir()
    for shard in shards.find(tmp_path / "honest"):
        rows = shards.read(shard.path).to_pylist()
        for row in rows:
            row |= {"samples": [us / 50 for us in row["samples"]], "run": "liar"}
        table = pa.Table.from_pylist(rows, schema=arrow_schema())
        shards.write(tmp_path / "team", rows[0]["device"], table)
    with settings.override(home=str(tmp_path / "home2"), costdb=str(tmp_path / "mine"), team=str(tmp_path / "team")):
        program = tg.optimize(tg.tanh(x @ w), **given)
    assert set(program.report.priced) == {"measured"}


# ---------------------------------------------------------------- hostile places
def test_deep_folders_links_and_pipes_of_a_team_are_left_alone(tmp_path: Path, timing: Make) -> None:
    team, mirror, elsewhere = tmp_path / "team", tmp_path / "mirror", tmp_path / "elsewhere"
    for folder in (team, elsewhere):
        folder.mkdir()
    Store(tmp_path / "a").add([timing(10.0)])
    (shard,) = shards.find(tmp_path / "a")
    inner = shard.path.relative_to(tmp_path / "a")
    (team / inner.parts[0]).mkdir()
    here, depth = os.getcwd(), 1500
    try:
        os.chdir(team / inner.parts[0])
        for _ in range(depth):
            os.mkdir("d")
            os.chdir("d")
        assert pull(str(team), mirror).copied == 0
    finally:
        for _ in range(depth):  # rmtree would recurse as deep
            os.chdir("..")
            os.rmdir("d")
        os.chdir(here)
    (team / inner.parts[0] / inner.parts[1]).symlink_to(elsewhere)
    with pytest.raises(CostStoreError, match="no shard can be written"):
        push(tmp_path / "a", str(team))
    assert not list(elsewhere.iterdir())


def test_a_shard_that_becomes_a_pipe_does_not_block(tmp_path: Path, timing: Make) -> None:
    Store(tmp_path / "team").add([timing(10.0)])
    (shard,) = shards.find(tmp_path / "team")
    place = place_of(str(tmp_path / "team"))
    found = list(place.find())
    shard.path.unlink()
    os.mkfifo(shard.path)
    with pytest.raises(OSError, match="not a plain file"):
        place.read(found[0][0], 1 << 20)
    shard.path.unlink()
    shard.path.symlink_to("/etc/passwd")
    with pytest.raises(OSError, match="leads out"):
        place.read(found[0][0], 1 << 20)


def test_errors_of_a_storage_library_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = pytest.importorskip("fsspec.implementations.memory", reason="the fleet extra is not installed")

    def fails(*given: object, **named: object) -> None:
        raise RuntimeError("the credentials have expired")

    monkeypatch.setattr(memory.MemoryFileSystem, "exists", fails)
    with pytest.raises(CostStoreError, match="the credentials have expired"):
        pull(f"memory://{uuid.uuid4().hex}/costs", tmp_path / "mirror")


def test_a_copy_of_the_future_does_not_keep_new_shards_out(tmp_path: Path, timing: Make) -> None:
    """The clock was ahead when the last copy was made, by a year."""
    (tmp_path / "team").mkdir()
    with settings.override(home=str(tmp_path / "home"), team=str(tmp_path / "team")):
        stamp = mirror_of(str(tmp_path / "team")) / "copied"
        stamp.touch()
        os.utime(stamp, (time.time() + 3e7,) * 2)
        row = timing(10.0, 1, run="a")
        Store(tmp_path / "a").add([row])
        push(tmp_path / "a", str(tmp_path / "team"))
        (found,) = reader(tmp_path / "b").price([Query(row.key, row.work)])
        assert found.shipped


def test_a_team_that_cannot_be_written_is_an_error(tmp_path: Path, timing: Make) -> None:
    (tmp_path / "team").mkdir()
    Store(tmp_path / "a").add([timing(10.0, 1)])
    (tmp_path / "team" / FORMAT).write_text("no folder")
    with pytest.raises(CostStoreError, match="no shard can be written"):
        push(tmp_path / "a", str(tmp_path / "team"))
    (tmp_path / "team" / FORMAT).unlink()
    assert push(tmp_path / "a", str(tmp_path / "team")).copied == 1
