"""The strict safetensors reader: what it takes, what it refuses, and what the writer leaves behind."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensor_graphs.egraph.ir.file_array import FileArray
from tensor_graphs.egraph.types import dtypes
from tensor_graphs.errors import BadWeightsError, TooLargeError, UnsupportedError, UnwritableError, UsageError
from tensor_graphs.models.files.safetensors import MAX_HEADER, read_folder, read_header, write_arrays


def raw(header: Any, data: bytes = b"", *, length: int | None = None) -> bytes:
    """File bytes with any header and any claimed header length."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def entry(shape: Any = (2,), begin: Any = 0, end: Any = 8, dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


E8 = bytes(8)
ATTACKS: dict[str, tuple[bytes, type[Exception], str]] = {
    "empty": (b"", BadWeightsError, "too few"),
    "short": (b"\x01\0\0\0", BadWeightsError, "too few"),
    "huge-length": (raw({}, length=(1 << 64) - 1), BadWeightsError, "more than"),
    "long-length": (raw({}, length=MAX_HEADER + 1), BadWeightsError, "more than"),
    "length-beyond-file": (raw({}, length=500), BadWeightsError, "the file has"),
    "bad-json": (raw(b"{'a': 1}"), BadWeightsError, "not valid JSON"),
    "cut-json": (raw(b'{"a": {"dtype"'), BadWeightsError, "not valid JSON"),
    "not-an-object": (raw(b"[1, 2]"), BadWeightsError, "'{'"),
    "leading-space": (raw(b" {}"), BadWeightsError, "'{'"),
    "no-header": (raw(b""), BadWeightsError, "'{'"),
    "not-utf8": (raw(b'{"\xff\xfe": 1}'), BadWeightsError, "not valid JSON"),
    "deep-json": (raw(b'{"a":' * 200_000), BadWeightsError, "not valid JSON"),
    "nan-literal": (raw(b'{"a": NaN}'), BadWeightsError, "not valid JSON"),
    "duplicate-key": (
        raw(b'{"a": %b, "a": %b}' % ((json.dumps(entry()).encode(),) * 2), E8), BadWeightsError, "twice"),
    "duplicate-field": (
        raw(b'{"a": {"dtype":"F32","dtype":"I32","shape":[2],"data_offsets":[0,8]}}', E8), BadWeightsError, "twice"),
    "overlap": (raw({"a": entry(), "b": entry((2,), 4, 12)}, bytes(12)), BadWeightsError, "overlaps"),
    "same-region": (raw({"a": entry(), "b": entry()}, E8), BadWeightsError, "overlaps"),
    "hole": (raw({"a": entry(), "b": entry((2,), 12, 20)}, bytes(20)), BadWeightsError, "hole"),
    "hole-first": (raw({"a": entry((2,), 4, 12)}, bytes(12)), BadWeightsError, "hole"),
    "out-of-bounds": (raw({"a": entry((4,), 0, 16)}, E8), BadWeightsError, "the data has 8"),
    "trailing": (raw({"a": entry()}, bytes(9)), BadWeightsError, "trailing"),
    "size-mismatch": (raw({"a": entry((3,))}, E8), BadWeightsError, "needs 12 bytes"),
    "reversed-offsets": (raw({"a": entry((2,), 8, 0)}, E8), BadWeightsError, "span"),
    "overflow": (raw({"a": entry((1 << 40, 1 << 40), 0, 8)}, E8), TooLargeError, "overflows"),
    "overflow-wraps-to-fit": (raw({"a": entry((1 << 33, 1 << 31), 0, 0)}), TooLargeError, "overflows"),
    "overflow-with-zero": (raw({"a": entry((1 << 70, 0), 0, 0)}), TooLargeError, "overflows"),
    "many-axes": (raw({"a": entry((1 << 62,) * 100_000, 0, 8)}, E8), TooLargeError, "100000 axes"),
    "negative-dim": (raw({"a": entry((-2,))}, E8), BadWeightsError, "not a list of sizes"),
    "two-negative-dims": (raw({"a": entry((-1, -2))}, E8), BadWeightsError, "not a list of sizes"),
    "float-dim": (raw({"a": entry((2.0,))}, E8), BadWeightsError, "not a list of sizes"),
    "bool-dim": (raw({"a": entry((True, 2))}, E8), BadWeightsError, "not a list of sizes"),
    "negative-offset": (raw({"a": entry((2,), -8, 0)}, E8), BadWeightsError, "data_offsets"),
    "one-offset": (raw({"a": {**entry(), "data_offsets": [8]}}, E8), BadWeightsError, "data_offsets"),
    "unknown-dtype": (raw({"a": entry(dtype="F33")}, E8), BadWeightsError, "unknown dtype"),
    "dtype-not-text": (raw({"a": entry(dtype=["F32"])}, E8), BadWeightsError, "unknown dtype"),
    "foreign-dtype": (raw({"a": entry((8,), dtype="F8_E5M2")}, E8), UnsupportedError, "F8_E5M2 ×1"),
    "missing-field": (raw({"a": {"dtype": "F32", "shape": [2]}}, E8), BadWeightsError, "exactly"),
    "extra-field": (raw({"a": {**entry(), "x": 1}}, E8), BadWeightsError, "exactly"),
    "entry-not-object": (raw({"a": [1]}, E8), BadWeightsError, "exactly"),
    "metadata-not-text": (raw({"__metadata__": {"a": 1}}), BadWeightsError, "__metadata__"),
    "long-number": (raw(b'{"a": ' + b"9" * 100_000 + b"}"), BadWeightsError, "not valid JSON"),
}  # fmt: skip


@pytest.mark.parametrize("kind", ATTACKS)
def test_malformed_files_are_refused(tmp_path: Path, kind: str) -> None:
    content, error, words = ATTACKS[kind]
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(error) as caught:
        read_header(path)
    assert type(caught.value) is error
    assert words in str(caught.value) and str(path) in str(caught.value)


@given(st.binary(max_size=200))
@settings(deadline=None, max_examples=60)
def test_any_bytes_are_read_or_refused(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("x") / "x.safetensors"
    for candidate in (content, raw(content)):
        path.write_bytes(candidate)
        with pytest.raises((BadWeightsError, TooLargeError)):
            read_header(path)


def test_no_file_is_opened_that_is_not_one(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.safetensors")  # opening it would wait for a writer
    for path in (tmp_path, tmp_path / "missing.safetensors", tmp_path / "pipe.safetensors"):
        with pytest.raises(BadWeightsError, match="there is no file"):
            read_header(path)


names = st.text(st.characters(exclude_categories=["Cs"]), max_size=12).filter(lambda n: n != "__metadata__")
shapes = st.lists(st.integers(0, 4), max_size=4).map(tuple)


@given(st.dictionaries(names, st.tuples(shapes, st.sampled_from(dtypes.DTYPES)), max_size=5), st.randoms())
@settings(deadline=None, max_examples=50)
def test_written_arrays_come_back(tmp_path_factory: pytest.TempPathFactory, wanted: Any, random: Any) -> None:
    from safetensors import safe_open

    rng = np.random.default_rng(random.getrandbits(32))
    arrays = {}
    for name, (shape, dtype) in wanted.items():
        noise = rng.integers(0, 2 if dtype == "bool" else 256, (*shape, dtypes.itemsize(dtype)), dtype=np.uint8)
        arrays[name] = noise.reshape(-1).view(dtypes.numpy_dtype(dtype)).reshape(shape)  # any bits, NaN included
    path = tmp_path_factory.mktemp("x") / "x.safetensors"
    write_arrays(path, arrays, {"note": "é\n"})
    found = read_header(path)
    assert found.metadata == {"note": "é\n"} and set(found.tensors) == set(arrays)
    with safe_open(path, "numpy") as official:  # the reference reader takes the file, too
        assert set(official.keys()) == set(arrays)
    for name, array in arrays.items():
        source = found.tensors[name]
        assert (source.shape, source.dtype) == (array.shape, dtypes.name_of(array.dtype))
        assert source.load().tobytes() == array.tobytes()
        assert source.offset % array.dtype.itemsize == 0


def test_bfloat16_stays_bfloat16_and_nan_is_data(tmp_path: Path) -> None:
    array = np.array([1.0, np.nan, -np.inf, -0.0], ml_dtypes.bfloat16)
    write_arrays(tmp_path / "x.safetensors", {"w": array})
    found = read_header(tmp_path / "x.safetensors").tensors["w"].load()
    assert found.dtype == ml_dtypes.bfloat16 and found.tobytes() == array.tobytes()


def test_other_layouts_are_written_in_order(tmp_path: Path) -> None:
    base = np.arange(24, dtype=np.float32).reshape(4, 6)
    views = {"t": base.T, "neg": base[::-1, ::2], "big": base.astype(">f4"), "scalar": np.array(3, np.float32)}
    write_arrays(tmp_path / "x.safetensors", views)
    found = read_header(tmp_path / "x.safetensors").tensors
    for name, view in views.items():
        np.testing.assert_array_equal(found[name].load(), view)


def test_data_is_not_read_before_use(tmp_path: Path) -> None:
    path = tmp_path / "sparse.safetensors"
    size = 1 << 36  # 64 GiB that take no space
    header = raw({"w": entry((size // 4,), 0, size)})
    with path.open("wb") as file:
        file.write(header)
        file.truncate(len(header) + size)
    assert read_header(path).tensors["w"].nbytes == size


def test_a_file_that_shrinks_later_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    write_arrays(path, {"w": np.zeros(100, np.float32)})
    source = read_header(path).tensors["w"]
    os.truncate(path, 200)
    with pytest.raises(BadWeightsError, match="200 bytes"):
        source.load()


class Failing:
    """Lazy data whose file has gone."""

    shape, dtype = (2,), "float32"

    def load(self) -> np.ndarray[Any, Any]:
        raise OSError("gone")


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    write_arrays(path, {"w": np.ones(2, np.float32)})
    before = path.read_bytes()
    with pytest.raises(UnwritableError, match="gone"):
        write_arrays(path, {"a": np.zeros(9), "w": Failing()})
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["x.safetensors"]


@pytest.mark.parametrize("name", ["__metadata__", "\ud800"])
def test_names_that_cannot_be_written(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError):
        write_arrays(tmp_path / "x.safetensors", {name: np.zeros(2)})
    assert not os.listdir(tmp_path)


# ---------------------------------------------------------------- sharded folders
@pytest.fixture
def shards(tmp_path: Path) -> Callable[..., Path]:
    """A folder of two shards whose index is changed by the test."""

    def build(**changes: Any) -> Path:
        write_arrays(tmp_path / "m-1.safetensors", {"a": np.ones(3, np.float32), "b": np.zeros(2, np.int64)})
        write_arrays(tmp_path / "m-2.safetensors", {"c": np.full((2, 2), 2.0)})
        places = {"a": "m-1.safetensors", "b": "m-1.safetensors", "c": "m-2.safetensors", **changes}
        places = {k: v for k, v in places.items() if v is not None}
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
        return tmp_path

    return build


def test_shards_are_joined(shards: Callable[..., Path]) -> None:
    found = read_folder(shards())
    assert all(isinstance(a, FileArray) for a in found.values())
    assert {n: a.load().sum() for n, a in found.items()} == {"a": 3.0, "b": 0, "c": 8.0}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"d": "m-3.safetensors"}, "'m-3.safetensors' is missing"),
        ({"d": "m\n\ud800.safetensors"}, "is missing"),
        ({"d": "m-2.safetensors"}, "'d' is not in 'm-2"),
        ({"b": None}, "'b' is in 'm-1.safetensors', the index has it nowhere"),
        ({"b": "m-2.safetensors"}, "'b' is in 'm-1.safetensors'"),
        ({"d": "m" * 300 + ".safetensors"}, "plain"),
        ({"d": "../m-1.safetensors"}, "plain"),
        ({"d": "/etc/passwd"}, "plain"),
        ({"d": "m-1.bin"}, "plain"),
        ({"d": 3}, "weight_map"),
    ],
)
def test_wrong_indexes_are_refused(shards: Callable[..., Path], changes: dict[str, Any], words: str) -> None:
    with pytest.raises(BadWeightsError, match=words):
        read_folder(shards(**changes))


def test_folders_without_usable_weights(tmp_path: Path) -> None:
    with pytest.raises(BadWeightsError, match=r"no \*.safetensors"):
        read_folder(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(BadWeightsError, match=r"beside pytorch_model\.bin"):
        read_folder(tmp_path)
    for name in ("a", "b"):
        write_arrays(tmp_path / f"{name}.safetensors", {name: np.zeros(1)})
    with pytest.raises(BadWeightsError, match="no index"):
        read_folder(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {}, "weight_map": {}}')
    with pytest.raises(BadWeightsError, match="twice"):
        read_folder(tmp_path)
