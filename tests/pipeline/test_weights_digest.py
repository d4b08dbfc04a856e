"""The hash of a graph's weights, and the record of it for unchanged files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tensor_graphs import settings
from tensor_graphs.egraph.ir.weight_data import Data
from tensor_graphs.models.files.safetensors import read_header, write_arrays
from tensor_graphs.pipeline.cache import facts, weights_digest
from tensor_graphs.pipeline.cache.weights_digest import content_digest

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


def unread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights_digest, "_hashed", lambda *_: pytest.fail("hashed again"))


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
    digests = [weights_digest.content_digest(p) for p in (base, *changed, *others)]
    assert len(set(digests)) == len(digests)
    assert weights_digest.content_digest({n: base[n].copy() for n in ("c", "b", "a")}) == digests[0]


@pytest.mark.usefixtures("home", "old")
def test_an_unchanged_file_is_hashed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = weights(tmp_path / "w.safetensors")
    first = content_digest(found)
    assert first == content_digest({n: data.load() for n, data in found.items()})  # type: ignore[union-attr]
    unread(monkeypatch)
    assert content_digest(dict(read_header(tmp_path / "w.safetensors").tensors)) == first


@pytest.mark.usefixtures("home", "old")
@pytest.mark.parametrize("how", ["replaced", "written", "named otherwise"])
def test_a_changed_file_is_hashed_again(tmp_path: Path, how: str) -> None:
    """Also if its size and its time of modification are those of before."""
    path = tmp_path / "w.safetensors"
    found = weights(path)
    first, times = content_digest(found), os.stat(path)
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
    assert content_digest(found) != first


def test_a_file_changed_just_now_has_no_record(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A further change could bear the same time."""
    found = weights(tmp_path / "w.safetensors")
    now = changed = (tmp_path / "w.safetensors").stat().st_mtime_ns
    only_in(monkeypatch, weights_digest, "time", time_ns=lambda: now)
    first = content_digest(found)
    assert not list(home.glob("facts/*"))
    now = changed + 3_000_000_000
    assert content_digest(found) == first and len(list(home.glob("facts/*"))) == 1


@pytest.mark.usefixtures("old")
def test_a_file_changed_meanwhile_has_no_record(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, hashed = weights(tmp_path / "w.safetensors"), weights_digest._hashed

    def changing(*given: object) -> str:
        digest = hashed(*given)  # type: ignore[arg-type]
        os.utime(tmp_path / "w.safetensors")
        return digest

    monkeypatch.setattr(weights_digest, "_hashed", changing)
    content_digest(found)
    assert not list(home.glob("facts/*"))


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
