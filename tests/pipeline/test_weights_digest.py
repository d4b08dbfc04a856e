"""The digest of a graph's weights, and facts kept in files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tensor_graphs import settings
from tensor_graphs.egraph.ir.file_array import FileArray
from tensor_graphs.egraph.ir.weight_data import Data
from tensor_graphs.models.common.quantized_graph import packed_weight
from tensor_graphs.models.files.safetensors import read_header, write_arrays
from tensor_graphs.models.huggingface.checkpoint import StackedArray
from tensor_graphs.pipeline import recall
from tensor_graphs.pipeline.background_hashes import hashed_beside
from tensor_graphs.pipeline.cache import facts, weights_digest
from tensor_graphs.pipeline.cache.weights_digest import WeightHashes
from tensor_graphs.pipeline.cache.weights_digest import weights_digest as digest

from ..only_in import only_in

A = np.arange(400_000, dtype=np.float32)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    with settings.override(home=str(tmp_path / "home")):
        yield tmp_path / "home"


@pytest.fixture
def old(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files count as unchanged for long."""
    monkeypatch.setattr(weights_digest, "SETTLED_NS", -(1 << 62))


def weights(path: Path, a: np.ndarray[tuple[int], np.dtype[np.float32]] = A) -> dict[str, Data]:
    write_arrays(path, {"a": a, "b": np.ones(3, np.float32)})
    return dict(read_header(path).tensors)


def test_weights_are_told_apart_by_every_byte_name_and_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also across the pieces that they are hashed in, and where more pieces wait than may."""
    monkeypatch.setattr(weights_digest, "PIECE", 64)
    monkeypatch.setattr(weights_digest, "AHEAD", 2)
    a, b = np.arange(100, dtype=np.float32), np.zeros((0, 3), np.float32)
    base = {"a": a, "b": b, "c": np.full((), 3.0)}
    changed = [{**base, "a": a + (np.arange(100) == n)} for n in (0, 15, 16, 99)]
    others = [
        {**base, "a": a.reshape(10, 10)},
        {"x": a, "b": b, "c": base["c"]},
        {**base, "b": b.reshape(3, 0)},
        {**base, "a": a.view(np.int32)},
    ]
    digests = [digest(p) for p in (base, *changed, *others)]
    assert len(set(digests)) == len(digests)
    assert digest({n: base[n].copy() for n in ("c", "b", "a")}) == digests[0]


@pytest.mark.usefixtures("old")
def test_an_unchanged_file_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor where codes of quantized weights are computed from it, or weights in memory are among the others."""
    monkeypatch.setattr(FileArray, "load", lambda self: pytest.fail("read"))
    for found in (weights(tmp_path / "w.safetensors"), dict(read_header(tmp_path / "w.safetensors").tensors)):
        codes = packed_weight(replace(found["a"], shape=(400, 1000)), "int8", "float32", True)  # type: ignore[type-var]
        first = digest({**found, **codes.params("w"), "stack": StackedArray((found["a"], found["a"])), "own": A[:5]})
        again = digest(
            {**found, **codes.params("w"), "stack": StackedArray((found["a"], found["a"])), "own": A[:5] + 0}
        )
        assert first == again != digest({**found, **codes.params("w"), "stack": found["a"], "own": A[:5]})


def test_codes_are_told_apart_by_their_weight_and_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without computing them; their weight is hashed once for codes and scales."""
    hashed = list[Data]()
    real = weights_digest.load_data
    monkeypatch.setattr(weights_digest, "load_data", lambda data: (hashed.append(data), real(data))[1])
    made = lambda w, form="int8", rows=True: packed_weight(w, form, "float32", rows).params("w")
    w = np.ones((128, 128), np.float32)
    digests = [digest(p) for p in (made(w), made(w + 1), made(w, "int4"), made(w, rows=False), {"w": w})]
    assert len(set(digests)) == len(digests) and digest(made(w.copy())) == digests[0]
    assert all(isinstance(data, np.ndarray) for data in hashed) and len(hashed) == 6


@pytest.mark.usefixtures("old")
@pytest.mark.parametrize("how", ["replaced", "written", "named otherwise"])
def test_a_changed_file_has_another_digest(tmp_path: Path, how: str) -> None:
    """Also if its size and its time of modification are those of before."""
    path = tmp_path / "w.safetensors"
    found = weights(path)
    first, times = digest(found), os.stat(path)
    if how == "replaced":
        weights(path, A + 1)
    elif how == "written":
        with path.open("r+b") as file:
            file.seek(-4, os.SEEK_END)
            file.write(b"1234")
    else:
        found = {"c": found["a"], "b": found["b"]}
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    if how != "named otherwise":
        found = dict(read_header(path).tensors)
    assert digest(found) != first


def test_a_file_changed_just_now_is_hashed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A further change could bear the same time."""
    found = weights(tmp_path / "w.safetensors")
    now = changed = (tmp_path / "w.safetensors").stat().st_mtime_ns
    only_in(monkeypatch, weights_digest, "time", time_ns=lambda: now)
    first = digest(found)
    assert first == digest({n: data.load() for n, data in found.items()})  # type: ignore[union-attr]
    now = changed + 3_000_000_000
    assert digest(found) == digest(found) != first


def test_data_is_hashed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hashes that were computed beside a search are used; those that it ended before are added."""
    a, b, loaded = np.ones(10), np.zeros(3), list[int]()
    monkeypatch.setattr(weights_digest, "load_data", lambda data: loaded.append(data.size) or data)
    hashes, params = WeightHashes(), {"a": a, "b": b, "again": a}
    hashes.add(hashes.missing(params), ended=lambda: bool(loaded))
    assert loaded == [10] and hashes.missing(params) == [b]
    assert digest(params, hashes) == digest(params, hashes) and loaded == [10, 3]


def searched(params: dict[str, Data], *, over: bool) -> Any:
    """Stand-in for a session, and for a task whose graph has these weights."""
    session = SimpleNamespace(over=over, plan_cache_notes=[], background_clocks=[])
    return session, SimpleNamespace(on_gpu=True, source=SimpleNamespace(params=params))


def test_weights_are_hashed_beside_a_search_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that nothing is hashed after its end."""
    session, task = searched({"a": A}, over=True)
    with hashed_beside(session, task, wanted=True) as hashes:
        hashes.wait()
    monkeypatch.setattr(weights_digest, "load_data", lambda data: pytest.fail("hashed again"))
    monkeypatch.setattr(recall, "LATE_BYTES", 0)
    assert recall._verified_weights(session, task, hashes) and not session.plan_cache_notes
    assert [name for name, _ in session.background_clocks] == ["weights"]


@pytest.mark.parametrize("over", [True, False])
def test_large_weights_are_not_hashed_after_the_budget(over: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next call verifies the plan again, and the report says so."""
    monkeypatch.setattr(recall, "LATE_BYTES", A.nbytes - 1)
    session, task = searched({"a": A}, over=over)
    assert recall._verified_weights(session, task, WeightHashes()) == ("" if over else digest({"a": A}))
    assert ["1,600,000 bytes" in note for note in session.plan_cache_notes] == [True] * over


def test_facts_are_sealed_and_few(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts.keep_fact(("a", 1), "text")
    assert facts.fact(("a", 1)) == "text" and facts.fact(("a", 2)) is None
    (path,) = home.glob("facts/*")
    facts.keep_fact(("b",), "other")
    (other,) = {*home.glob("facts/*")} - {path}
    other.write_bytes(path.read_bytes())
    assert facts.fact(("b",)) is None, "the file of another fact"
    path.write_bytes(path.read_bytes().replace(b"text", b"next"))
    assert facts.fact(("a", 1)) is None, "damaged"
    monkeypatch.setattr(facts, "KEPT_FACTS", 2)
    for i in range(4):
        facts.keep_fact(i, "x")
    assert len(list(home.glob("facts/*"))) == 2 and facts.fact(3) == "x"
