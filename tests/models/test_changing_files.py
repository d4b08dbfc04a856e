"""Files that are replaced or written while they are read, or before their weights are: a named error, not other
numbers."""

from __future__ import annotations

import json
import os
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.backends.runtime import upload
from tensor_graphs.egraph.ir.file_array import FileArray
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.ir.weight_data import load_data
from tensor_graphs.errors import BadModelError, BadWeightsError
from tensor_graphs.models.files import safetensors
from tensor_graphs.models.files.gguf import read_gguf
from tensor_graphs.models.files.native import save_graph
from tensor_graphs.models.files.safetensors import SafeFile, read_folder, read_header, write_arrays
from tensor_graphs.models.onnx.load import load_onnx

from .test_gguf import file_of

SIZES = {"small": 64, "mapped": 1 << 19}


def longer(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


def shorter(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) - 8])


def replaced(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(b"no weights")
    other.replace(path)


def gone(path: Path) -> None:
    path.unlink()


def rewritten(path: Path) -> None:
    """Other numbers, the same length, in place."""
    content = path.read_bytes()
    path.write_bytes(content[:-4] + b"\0\0\0\0")
    later(path)


def equally_long(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(path.read_bytes()[:-4] + b"\0\0\0\0")
    os.utime(other, ns=(0, path.stat().st_mtime_ns))
    other.replace(path)


def a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def later(path: Path) -> None:
    """Two writes within a tick of the file system's clock have one time: make it another one."""
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))


CHANGES = [longer, shorter, replaced, gone, rewritten, equally_long, a_pipe]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("change", CHANGES)
def test_weights_of_a_file_that_changes(size: str, change: Callable[[Path], None], tmp_path: Path) -> None:
    """Also those of a folder."""
    path = tmp_path / "model.safetensors"
    write_arrays(path, {"w": np.arange(SIZES[size], dtype=np.float32)})
    found = [read_header(path).tensors["w"], read_folder(tmp_path)["w"]]
    change(path)
    for array in found:
        with pytest.raises(BadWeightsError):
            array.load()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("change", CHANGES)
def test_tensors_of_a_gguf_file_that_changes(size: str, change: Callable[[Path], None], tmp_path: Path) -> None:
    path, content = tmp_path / "m.gguf", np.arange(SIZES[size], dtype=np.float32).tobytes()
    path.write_bytes(file_of({}, {"w": ((SIZES[size],), 0, content)}))
    tensor = read_gguf(path).tensors["w"].data
    np.testing.assert_array_equal(tensor.load()[:3], [0, 1, 2])
    change(path)
    with pytest.raises(BadWeightsError):
        tensor.load()
    if change is a_pipe:
        with pytest.raises(BadModelError, match="plain file"):
            read_gguf(path)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("change", CHANGES)
def test_external_data_that_changes(size: str, change: Callable[[Path], None], tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    shape = [1, SIZES[size] * 16]
    raw = np.arange(shape[1], dtype=np.float32).tobytes()
    weight = onnx.helper.make_tensor("w", onnx.TensorProto.FLOAT, shape, raw, raw=True)
    kinds = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, shape) for n in "xy"]
    node = onnx.helper.make_node("Add", ["x", "w"], ["y"])
    model = onnx.helper.make_model(onnx.helper.make_graph([node], "g", kinds[:1], kinds[1:], [weight]))
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    (data,) = load_onnx(tmp_path / "m.onnx").params.values()
    np.testing.assert_array_equal(load_data(data).reshape(-1)[:3], [0, 1, 2])
    change(tmp_path / "w.bin")
    with pytest.raises(BadWeightsError):
        load_data(data)


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_a_program_keeps_the_weights_that_it_was_verified_with(backend: str, tmp_path: Path) -> None:
    """Whatever is written into the file later, and if it is cut short."""
    path = tmp_path / "m.safetensors"
    values = {name: np.random.default_rng(0).standard_normal((512, 1024)).astype(np.float32) for name in "wv"}
    x, w, v = tg.input("x", (8, 512)), tg.param("w", (512, 1024)), tg.param("v", (512, 1024))
    save_graph(Graph.of((x @ w, tg.sum(v, axis=0), v[:2]), params=values, name="g"), path)
    program = tg.optimize(path, backend=backend, measure=False, budget=2)
    given = np.ones((8, 512), np.float32)
    before = [y.copy() for y in program(given)]
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(bytes(path.stat().st_size - 4096))
    for wanted, found in zip(before, program(given), strict=True):
        np.testing.assert_array_equal(found, wanted)
    os.truncate(path, 4096)
    for wanted, found in zip(before, program(given), strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_equal_regions_share_memory_while_it_is_in_use(tmp_path: Path) -> None:
    """So that programs and references hold a weight once; and a file that is cut short ends no process."""
    path, values = tmp_path / "m.safetensors", np.arange(1 << 19, dtype=np.float32).reshape(512, 1024)
    write_arrays(path, {"a": values})
    array, again = read_header(path).tensors["a"], read_header(path).tensors["a"]
    held, own = array.load(), array.copy()
    assert np.shares_memory(held, again.load()) and not np.shares_memory(held, own)
    assert own.flags.writeable and not held.flags.writeable
    os.truncate(path, 4096)
    np.testing.assert_array_equal(held, values)
    with pytest.raises(BadWeightsError, match="has 4096 bytes"):
        again.load()
    shared = weakref.ref(held.base)
    del held
    assert shared() is None


def test_a_file_that_is_cut_short_while_it_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To a device, in pieces, as tensors in memory are copied, too."""
    torch = pytest.importorskip("torch")
    path, values = tmp_path / "m.safetensors", np.arange(1 << 19, dtype=np.float32)
    write_arrays(path, {"a": values})
    array = read_header(path).tensors["a"]
    monkeypatch.setattr(upload, "PIECE", 300_000)
    np.testing.assert_array_equal(upload.uploaded_file(array, "cpu").numpy(), values)
    in_pieces, pieces = upload._in_pieces, FileArray.pieces
    with monkeypatch.context() as patch:
        patch.setattr(upload, "_in_pieces", lambda pieces, size, device: in_pieces(pieces, size, "cpu"))
        for given in (torch.from_numpy(values).reshape(2, -1), torch.arange(700_001).to(torch.bfloat16)):
            assert torch.equal(found := upload.uploaded_tensor(given, "cuda"), given) and found.dtype == given.dtype

    def cut(self: FileArray, buffers: Any) -> Any:
        for number, piece in enumerate(pieces(self, buffers)):
            if number == 2:
                os.truncate(path, 4096)
            yield piece

    monkeypatch.setattr(FileArray, "pieces", cut)
    with pytest.raises(BadWeightsError, match="become shorter"):
        upload.uploaded_file(array, "cpu")


@pytest.mark.parametrize("changed", ["model.safetensors.index.json", "b.safetensors"])
def test_a_checkpoint_that_changes_while_it_is_read(
    changed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its shards may be those of two versions."""
    for shard in "ab":
        write_arrays(tmp_path / f"{shard}.safetensors", {shard: np.zeros(3, np.float32)})
    index = {"weight_map": {"a": "a.safetensors", "b": "b.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert set(read_folder(tmp_path)) == {"a", "b"}
    read = safetensors.read_header

    def read_slowly(path: Path) -> SafeFile:
        found = read(path)
        later(tmp_path / changed)
        return found

    monkeypatch.setattr(safetensors, "read_header", read_slowly)
    with pytest.raises(BadWeightsError, match="while the checkpoint was read"):
        read_folder(tmp_path)


def test_a_model_that_changes_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    onnx = pytest.importorskip("onnx")
    kinds = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [3]) for n in "xy"]
    path = tmp_path / "m.onnx"
    onnx.save(
        onnx.helper.make_model(
            onnx.helper.make_graph([onnx.helper.make_node("Neg", "x", "y")], "g", kinds[:1], kinds[1:])
        ),
        path,
    )
    read = onnx.load

    def read_slowly(*args: Any, **how: Any) -> Any:
        found = read(*args, **how)
        later(path)
        return found

    load_onnx(path)
    monkeypatch.setattr(onnx, "load", read_slowly)
    with pytest.raises(BadModelError, match="while it was read"):
        load_onnx(path)
