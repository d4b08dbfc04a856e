"""Faults 20 to 25 of the design's list, as far as they concern the store: every one costs at most speed."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tensor_graphs import private
from tensor_graphs.costdb.keys.key import KernelKey, Work
from tensor_graphs.costdb.price.predict import Query
from tensor_graphs.costdb.reports.reports import CostStoreWarning
from tensor_graphs.costdb.store import cache_snapshot, schema
from tensor_graphs.costdb.store import store as store_module
from tensor_graphs.costdb.store.schema import FailureRow, TimingRow, to_table
from tensor_graphs.costdb.store.store import Store, cache, shards
from tensor_graphs.errors import CostStoreError
from tensor_graphs.writing import files

from ..only_in import only_in
from .reading import lookup

Make = Callable[..., TimingRow]

PRELUDE = """
import sys, time
from pathlib import Path
from tensor_graphs.costdb.keys.key import KernelKey, Work
from tensor_graphs.costdb.store.schema import TimingRow
from tensor_graphs.costdb.store.store import Store
def key(size):
    return KernelKey("body", "add", "pointwise", "numpy", "1", "text", shapes=((size,),), dtypes=("float32",),
                     device="cpu:test")
store = Store(sys.argv[1])
"""


def child(code: str, *arguments: object, **options: Any) -> subprocess.Popen[str]:
    """Another Python process running PRELUDE and `code`."""
    command = [sys.executable, "-c", PRELUDE + code, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def raised(error: Exception) -> None:
    raise error


def cache_file(root: Path) -> Path:
    return next(root.glob("cache*/*.duckdb"))


@pytest.fixture
def filled(tmp_path: Path, timing: Make) -> Path:
    """A store of two shards and a warm cache."""
    store = Store(tmp_path / "db")
    store.add([timing(float(size), size) for size in range(1, 6)])
    store.add([timing(float(size), size) for size in range(6, 11)])
    assert len(lookup(store, [timing(size=size).key for size in range(1, 11)])) == 10
    return store.root


def all_found(store: Store, timing: Make, sizes: range = range(1, 11)) -> bool:
    keys = [timing(size=size).key for size in sizes]
    return [round(found.us) for found in lookup(store, keys).values()] == list(sizes)


# 20: locked by another process


def test_a_cache_open_elsewhere_is_read_around(filled: Path, timing: Make) -> None:
    code = "import duckdb, sys; c = duckdb.connect(sys.argv[1]); print('open', flush=True); input()"
    command = [sys.executable, "-c", code, str(cache_file(filled))]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None and holder.stdout.readline() == "open\n"
        store = Store(filled, wait_s=0.2)
        with pytest.warns(CostStoreWarning, match="another program has the cache open"):
            assert all_found(store, timing)
        assert store.add([timing(11.0, 11)]).durable
    finally:
        holder.communicate("\n", timeout=300)
    assert all_found(Store(filled), timing, range(1, 12))


def test_a_cache_released_in_time_is_waited_for(filled: Path, timing: Make) -> None:
    code = "import duckdb, sys, time; c = duckdb.connect(sys.argv[1]); print('open', flush=True); time.sleep(0.5)"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(cache_file(filled))], stdout=subprocess.PIPE, text=True
    ) as p:
        assert p.stdout is not None and p.stdout.readline() == "open\n"
        assert all_found(Store(filled, wait_s=300.0), timing)  # a warning would fail the test


def test_a_held_file_lock_is_read_around(filled: Path, timing: Make) -> None:
    from filelock import FileLock

    lock = FileLock(cache_file(filled).with_suffix(".lock"))
    with lock, pytest.warns(CostStoreWarning, match="keeps the cache locked"):
        assert all_found(Store(filled, wait_s=0.1), timing)


def test_two_writers_and_a_reader_at_once(tmp_path: Path, timing: Make) -> None:
    code = """
first = int(sys.argv[2])
for size in range(first, first + 4):
    assert store.add([TimingRow(key=key(size), work=Work(size, size), samples=(float(size),))]).durable
    fresh = Store(sys.argv[1], wait_s=300.0)
    assert fresh.snapshot.measurement(key(size).digest, "hot"), size
print("done")
"""
    writers = [child(code, tmp_path, first) for first in (1, 5)]
    reader = Store(tmp_path, wait_s=300.0)
    while any(writer.poll() is None for writer in writers):
        reader.refresh()
        seen = lookup(reader, [timing(size=size).key for size in range(1, 9)])
        assert all(found.n == 1 for found in seen.values())
        time.sleep(0.02)
    for writer in writers:
        out, err = writer.communicate(timeout=300)
        assert out == "done\n" and writer.returncode == 0 and not err, err
    assert all_found(Store(tmp_path), timing, range(1, 9))
    assert Store(tmp_path).check().shards == 8


# 21: corrupt cache, other schema, read-only, disk full


@pytest.mark.parametrize("content", [b"", b"not a database" * 1000, "third", "pipe", b"\x00" * 300_000])
def test_a_broken_cache_is_set_aside_and_rebuilt(filled: Path, timing: Make, content: bytes | str) -> None:
    file = cache_file(filled)
    if content == "pipe":
        file.unlink()
        os.mkfifo(file)
        os.mkfifo(cache_snapshot.path_of(file))
    else:
        file.write_bytes(content if isinstance(content, bytes) else file.read_bytes()[: file.stat().st_size // 3])
    with pytest.warns(CostStoreWarning, match="corrupt"):
        assert all_found(Store(filled), timing)
    assert len(list(file.parent.glob("*.corrupt-*"))) == 1
    assert all_found(Store(filled), timing)  # and then it is well again


def test_a_flipped_byte_anywhere_in_the_cache_is_survived(filled: Path, timing: Make) -> None:
    file = cache_file(filled)
    sound = file.read_bytes()
    for place in range(0, len(sound), len(sound) // 12):
        file.write_bytes(sound[:place] + bytes([sound[place] ^ 0xFF]) + sound[place + 1 :])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CostStoreWarning)  # some bytes matter, some do not
            assert all_found(Store(filled), timing)


@pytest.mark.parametrize(
    "statement", ["UPDATE meta SET version = 'v9'", "DROP TABLE rows", "ALTER TABLE rows DROP flops"]
)
def test_a_cache_of_another_version_is_rebuilt(filled: Path, timing: Make, statement: str) -> None:
    with duckdb.connect(str(cache_file(filled))) as connection:
        connection.execute(statement)
    with pytest.warns(CostStoreWarning, match="other? version|another version"):
        assert all_found(Store(filled), timing)


def test_ctrl_c_during_a_query_is_no_damage(filled: Path, timing: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """DuckDB turns what a signal handler raises into an error of its own."""

    def interrupted(*given: object) -> None:
        raise RuntimeError("Query interrupted")

    assert all_found(Store(filled), timing)
    before = sorted(p.name for p in filled.rglob("*"))
    with monkeypatch.context() as patch:
        patch.setattr(cache, "_synchronised", interrupted)
        with pytest.raises(KeyboardInterrupt):
            lookup(Store(filled), [timing().key])
    assert sorted(p.name for p in filled.rglob("*")) == before
    assert all_found(Store(filled), timing)


def test_newer_formats_are_named_and_left_alone(filled: Path) -> None:
    (filled / "v2" / "device=x").mkdir(parents=True)
    (filled / "v2" / "device=x" / "a.parquet").write_bytes(b"future")
    assert Store(filled).check().newer_formats == ("v2",)
    assert (filled / "v2" / "device=x" / "a.parquet").exists()


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs a folder in which nobody can write")
def test_a_store_that_cannot_be_written_works_in_memory(timing: Make) -> None:
    store = Store("/proc/self/costs")
    with pytest.warns(CostStoreWarning, match="kept in memory"):
        assert not store.add([timing(5.0)]).durable
    with pytest.warns(CostStoreWarning, match="read into memory"):
        assert lookup(store, [timing().key])


def test_a_readable_store_without_a_writable_cache(filled: Path, timing: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    only_in(monkeypatch, private, "os", access=lambda path, mode: False)
    with pytest.warns(CostStoreWarning, match="read-only"):
        assert all_found(Store(filled), timing)


def test_a_full_disk_keeps_rows_in_memory_until_there_is_room(
    tmp_path: Path, timing: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path)
    with monkeypatch.context() as patch:
        only_in(patch, files, "os", fsync=lambda descriptor: raised(OSError(errno.ENOSPC, "No space left")))
        with pytest.warns(CostStoreWarning, match="No space left"):
            assert not store.add([timing(1.0, 1)]).durable
        assert lookup(store, [timing(size=1).key])
        assert shards.find(tmp_path) == [] and shards.temporaries(tmp_path) == []
    assert store.add([timing(2.0, 2)]).durable
    assert all_found(Store(tmp_path), timing, range(1, 3))


def test_a_file_in_place_of_the_store_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "db").write_text("hello")
    with pytest.raises(CostStoreError):
        Store(tmp_path / "db")


# 22: bad shards and rows


def _place(root: Path, content: bytes, name: str | None = None) -> None:
    folder = root / "v1" / "device=x" / "2026-01-01"
    folder.mkdir(parents=True, exist_ok=True)
    if name is None:
        shards.write_by_content(folder, content)
    else:
        (folder / name).write_bytes(content)


def _damage(content: bytes, timing: Make) -> dict[str, Callable[[Path], None]]:
    table = to_table([timing(size=77)])
    retyped = table.set_column(0, "kind", pa.array([1]))
    return {
        "sha256-differs": lambda root: _place(root, content[:-10], "0" * 64 + ".parquet"),
        "unreadable-parquet": lambda root: _place(root, content[: len(content) // 2]),
        "wrong-columns": lambda root: _place(root, shards.encode(table.drop_columns(["digest"]))),
        "wrong-columns-type": lambda root: _place(root, shards.encode(retyped)),
        "not-named-by-sha256": lambda root: _place(root, content, "timings.parquet"),
        "unreadable-parquet-empty": lambda root: _place(root, b""),
        "too-large": lambda root: _place(root, _expanding(table, "message")),
        "too-large-samples": lambda root: _place(root, _expanding(table, "samples")),
    }


def _expanding(table: pa.Table, name: str) -> bytes:
    """A few KB whose rows take more than 8 MB: equal texts, or equal samples, are stored once."""
    if name == "message":
        rows = pa.array([0] * 10_000)
        table, one = table.take(rows), pa.DictionaryArray.from_arrays(rows.cast(pa.int32()), ["x" * 1000])
    else:
        one = pa.array([[1.0] * 1_000_000], table.schema.field(name).type)
    return shards.encode(table.set_column(table.schema.get_field_index(name), name, one))


KINDS = (
    "sha256-differs", "unreadable-parquet", "wrong-columns", "wrong-columns-type", "not-named-by-sha256",
    "unreadable-parquet-empty", "too-large", "too-large-samples",
)  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_a_bad_shard_is_set_aside_and_the_others_are_used(filled: Path, timing: Make, kind: str) -> None:
    _damage(shards.find(filled)[0].path.read_bytes(), timing)[kind](filled)
    with pytest.warns(CostStoreWarning, match="1 bad shard"):
        assert all_found(Store(filled), timing)
    report = Store(filled).check()
    assert sum(report.quarantined.values()) == 1 and kind.startswith(next(iter(report.quarantined)))
    assert report.shards == 2 and not report.ok


def test_every_single_flipped_byte_is_noticed(tmp_path: Path, timing: Make) -> None:
    path = shards.write(tmp_path, "cpu", to_table([timing()]))
    sound = path.read_bytes()
    for place in range(0, len(sound), 97):
        path.write_bytes(sound[:place] + bytes([sound[place] ^ 1]) + sound[place + 1 :])
        with pytest.raises(shards.BadShard):
            shards.read(path)


@settings(
    deadline=None, max_examples=40,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip
@given(damage=st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), min_size=1, max_size=4))
def test_random_bytes_in_a_well_named_file_never_escape(damage: list[tuple[int, int]], timing: Make) -> None:
    fixed = {"run": "r", "time_us": 1_700_000_000_000_000}
    content = bytearray(shards.encode(to_table([timing(**fixed), timing(1.0, 2, **fixed)])))
    for place, value in damage:
        content[place % len(content)] = value
    with contextlib.suppress(shards.BadShard):
        schema.checked(shards.decode(bytes(content)))


def test_check_finds_a_shard_that_rotted_after_import(filled: Path, timing: Make) -> None:
    victim = shards.find(filled)[0].path
    content = victim.read_bytes()
    victim.write_bytes(content[:100] + bytes([content[100] ^ 4]) + content[101:])
    report = Store(filled).check()
    assert report.bad_shards == {victim.name.removesuffix(".parquet"): "sha256-differs"} and report.shards == 1
    with pytest.raises(CostStoreError, match="cannot be exported"):
        victim.write_bytes(b"again")
        Store(filled).export(filled / "all.parquet")


def test_bad_rows_in_a_good_shard_are_counted(tmp_path: Path, timing: Make) -> None:
    rows = [timing(5.0), timing(float("nan"), 2), timing(-1.0, 3), timing(5.0, 4, time_us=1)]
    shards.write(tmp_path, "cpu", to_table(rows))
    store = Store(tmp_path)
    assert len(lookup(store, [row.key for row in rows])) == 1
    assert store.check().skipped_rows == {"bad latency": 2, "absurd date": 1}


def test_merging_a_bad_store_takes_the_good_part(tmp_path: Path, filled: Path, timing: Make) -> None:
    _place(filled, b"junk")
    shards.write(filled, "gpu", to_table([timing(5.0, 50, device="gpu"), timing(0.0, 51, device="gpu")]))
    store = Store(tmp_path / "mine")
    report = store.merge(filled)
    assert (report.copied, set(report.bad_shards.values())) == (3, {"unreadable-parquet"})
    assert report.skipped_rows == {"bad latency": 1}
    assert all_found(store, timing) and lookup(store, [timing(size=50, device="gpu").key]) and store.check().ok
    assert not shards.quarantined(filled)  # another's store is not ours to tidy


def test_rows_of_another_device_or_driver_never_answer(
    tmp_path: Path, timing: Make, key: Callable[..., KernelKey]
) -> None:
    store = Store(tmp_path)
    store.add([timing(5.0, device="cpu:other"), timing(5.0, driver="other"), timing(5.0, toolchain="other")])
    assert lookup(store, [key()]) == {}


def test_links_are_not_followed(tmp_path: Path, filled: Path, timing: Make) -> None:
    root = tmp_path / "linked"
    (root / "v1").mkdir(parents=True)
    (root / "v1" / "device=x").symlink_to(shards.find(filled)[0].path.parents[1])
    assert shards.find(root) == []


# 23: poisoned content


def test_a_nanosecond_timing_is_refused_and_a_fast_lie_not_believed(
    tmp_path: Path, timing: Make, key: Callable[..., KernelKey]
) -> None:
    store = Store(tmp_path)
    assert store.add([timing(1e-3, 10**6)]).skipped == {"bad latency": 1}
    query = Query(key(10**6), Work(1e6, 1.2e7))
    (honest,) = store.price([query])
    store.add([timing(3e-3, 10**6, work=query.work, run="stranger")])
    assert lookup(store, [query.key])  # it is kept: it might be a truth about something else
    assert store.price([query]) == [honest] and honest.source == "bound"


def test_a_claim_that_is_not_reproduced_is_dropped(tmp_path: Path, timing: Make) -> None:
    store = Store(tmp_path)
    store.add([timing(1.0, run=f"stranger{i}") for i in range(9)])
    (claimed,) = lookup(store, [timing().key]).values()
    store.add([timing(100.0)])
    (found,) = lookup(store, [timing().key]).values()
    assert claimed.us == pytest.approx(1.0) and not claimed.own
    assert found.us == pytest.approx(100.0) and found.own and found.n == 1
    store.add([timing(1.1)])  # measured again, and now the claim holds
    (again,) = lookup(store, [timing().key]).values()
    assert again.own and again.us == pytest.approx(50.55)


def test_own_measurements_are_believed_even_below_the_bound(
    tmp_path: Path, timing: Make, key: Callable[..., KernelKey]
) -> None:
    store, overstated = Store(tmp_path), Work(1e12, 1e12)
    store.add([timing(5.0, work=overstated)])
    (price,) = store.price([Query(key(), overstated)])
    assert price.source == "measured" and price.us == pytest.approx(5.0)


HOSTILE = (
    "'; DROP TABLE rows; --", '"; ATTACH \'/etc/passwd\' AS x; --', "<script>alert(1)</script>", "a\nb\r\x00c\x1b[31m",
    "../../../etc/passwd", "$(touch /tmp/owned)", "\u202egnirts", "__import__('os').system('id')", "x" * 300_000,
    "\ud800",
)  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_texts_are_only_texts(tmp_path: Path, text: str) -> None:
    key = KernelKey(
        text, text, text, text, text, text, constants=(text,), schedule={text: text}, device=text, driver=text
    )
    store = Store(tmp_path / "db")
    rows = [
        TimingRow(key=key, samples=(5.0,), work=Work(10, 10), run=text),
        FailureRow(key=key, status=text, stage=text, message=text),
    ]
    assert store.add(rows).rows == 2
    fresh = Store(tmp_path / "db")
    assert lookup(fresh, [key]) and fresh.failures([key]) and fresh.price([Query(key, Work(10, 10))])
    stats = fresh.stats()
    assert "<script" not in stats._repr_html_() and "\x1b" not in repr(stats) and "\u202e" not in repr(stats)
    assert fresh.check().ok
    assert {path.name for path in tmp_path.iterdir()} == {"db"}


def test_the_cache_reaches_nothing_outside(filled: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.csv").write_text("a\n1\n")
    with cache._connection(str(cache_file(filled))) as connection:
        for statement in (
            f"SELECT * FROM read_csv('{tmp_path / 'secret.csv'}')",
            f"COPY (SELECT 1) TO '{tmp_path / 'out.csv'}'",
            f"ATTACH '{tmp_path / 'other.duckdb'}' AS other",
            "INSTALL httpfs",
            "SET enable_external_access = true",
        ):
            with pytest.raises(duckdb.Error):
                connection.execute(statement)


# 24: kill -9


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_no_acknowledged_row_is_lost_by_a_kill(tmp_path: Path, timing: Make) -> None:
    code = """
for size in range(1, 100_000):
    assert store.add([TimingRow(key=key(size), samples=(float(size),))]).durable
    print(size, flush=True)
    Store(sys.argv[1]).snapshot.measurement(key(1).digest, "hot")
"""
    writer = child(code, tmp_path)
    assert writer.stdout is not None
    while int(writer.stdout.readline()) < 12:
        pass
    time.sleep(0.02)
    writer.send_signal(signal.SIGKILL)
    rest, _ = writer.communicate(timeout=300)
    acknowledged = max([12, *map(int, rest.split())])
    assert writer.returncode == -signal.SIGKILL
    assert all_found(Store(tmp_path), timing, range(1, acknowledged + 1))
    assert not Store(tmp_path).check().bad_shards


def test_compacting_that_dies_before_its_shard_is_durable_loses_nothing(
    filled: Path, timing: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        only_in(patch, files, "os", replace=lambda *a: raised(OSError(errno.EIO, "dead")))
        with pytest.raises(CostStoreError, match="dead"):
            Store(filled).compact()
    assert all_found(Store(filled), timing) and len(shards.find(filled)) == 2


def test_compacting_keeps_shards_with_rows_refused_here(tmp_path: Path, timing: Make) -> None:
    absurd = schema.MAX_TIME_US + 1
    doubtful = shards.write(tmp_path, "cpu", to_table([timing(5.0), timing(6.0, 2, time_us=absurd)]))
    store = Store(tmp_path)
    for size in (3, 4):
        store.add([timing(float(size), size)])
    assert store.compact().shards_after == 1
    assert doubtful.exists() and len(shards.find(tmp_path)) == 2


def test_a_rotten_file_of_the_same_name_is_replaced(tmp_path: Path, timing: Make) -> None:
    row = timing()
    store = Store(tmp_path)
    store.add([row])
    (shard,) = shards.find(tmp_path)
    shard.path.write_bytes(b"rot")
    assert store.add([row]).durable
    assert shards.read(shard.path).num_rows == 1


def test_left_behind_temporary_files_are_removed_when_old(filled: Path) -> None:
    folder = shards.find(filled)[0].path.parent
    old, young = folder / ".tmp-1-a", folder / ".tmp-2-b"
    old.write_bytes(b"x")
    young.write_bytes(b"x")
    os.utime(old, (time.time() - 10_000,) * 2)
    assert Store(filled).check().temporaries_removed == 1
    assert not old.exists() and young.exists()


# 25: a cache folder that is not ours


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="needs owners")
def test_a_foreign_cache_folder_is_refused(filled: Path, timing: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = cache_file(filled).parent
    uid = os.getuid() + 1
    ours.rename(ours.with_name(f"cache-{uid}"))
    for user in (cache, private):
        only_in(monkeypatch, user, "os", getuid=lambda: uid)
    with pytest.warns(CostStoreWarning, match="another user"):
        assert all_found(Store(filled), timing)


def test_a_link_in_place_of_the_cache_folder_is_refused(filled: Path, tmp_path: Path, timing: Make) -> None:
    ours = cache_file(filled).parent
    (tmp_path / "target").mkdir()
    ours.rename(tmp_path / "moved")
    ours.symlink_to(tmp_path / "target")
    with pytest.warns(CostStoreWarning, match="is a link"):
        assert all_found(Store(filled), timing)
    assert not list((tmp_path / "target").iterdir())


def test_the_cache_folder_is_private(filled: Path) -> None:
    assert cache_file(filled).parent.stat().st_mode & 0o077 == 0


def test_a_shard_is_valid_parquet_for_everyone(filled: Path) -> None:
    (first, _) = shards.find(filled)
    assert pq.read_table(first.path, page_checksum_verification=True).num_rows == 5


def test_faults_are_found_without_asserts(tmp_path: Path) -> None:
    code = PRELUDE + "print(store.add([TimingRow(key=key(1), samples=(-1.0,))]).skipped)"
    done = subprocess.run([sys.executable, "-O", "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout == "{'bad latency': 1}\n"


def test_a_store_that_cannot_be_reached(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As in another user's folder."""

    class Foreign(type(tmp_path)):  # type: ignore[misc]
        def exists(self) -> bool:
            raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(store_module, "default_root", lambda: Foreign(tmp_path))
    with pytest.raises(CostStoreError, match="cannot be reached: Permission denied"):
        Store()
