"""One entry for all model files: each kind goes to its loader, everything else gives a clear error."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from tensor_graphs.egraph.builders import builders as t
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.errors import BadModelError, UnsupportedError, UntrustedModelError, UsageError
from tensor_graphs.models import random_checkpoints
from tensor_graphs.models.files.native import save_graph
from tensor_graphs.models.files.safetensors import write_arrays
from tensor_graphs.models.load import FORMATS, ModelFormat, load


def test_native_files_and_folders(tmp_path: Path) -> None:
    x = t.input("x", (t.dim("n"), 2))
    save_graph(Graph.of(t.exp(x)), tmp_path / "g.safetensors")
    assert set(load(tmp_path / "g.safetensors").free_dims) == {"n"}
    assert load(str(tmp_path / "g.safetensors"), dims={"n": 3}).outputs[0].shape == (3, 2)
    folder = random_checkpoints.write_gpt2(tmp_path / "m", layers=1, hidden=8, heads=2, vocab=5)
    assert set(load(folder, dims={"batch": 2}).free_dims) == {"sequence"}
    with pytest.raises(UsageError, match="bogus"):
        load(folder, dims={"bogus": 2})


def test_onnx_goes_to_its_loader(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    make = onnx.helper
    value = lambda name: make.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", 2])
    graph = make.make_graph([make.make_node("Exp", ["x"], ["y"])], "g", [value("x")], [value("y")])
    onnx.save(make.make_model(graph, opset_imports=[make.make_opsetid("", 18)]), tmp_path / "m.ONNX")
    assert load(tmp_path / "m.ONNX", dims={"n": 3}).outputs[0].shape == (3, 2)


class Bomb:
    """Unpickling it makes a folder."""

    def __init__(self, spot: Path) -> None:
        self.spot = spot

    def __reduce__(self) -> object:
        return os.mkdir, (str(self.spot),)


@pytest.mark.parametrize("name", ["m.pt2", "m.pt", "m.pth", "m.bin", "m.ckpt", "m.pkl"])
def test_pickles_are_refused_unopened(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(pickle.dumps(Bomb(tmp_path / "ran")))
    with pytest.raises(UntrustedModelError, match="can run code"):
        load(tmp_path / name)
    if name != "m.pt2":  # trust does not open whole-module pickles either
        with pytest.raises(UntrustedModelError):
            load(tmp_path / name, trust=True)
    assert not (tmp_path / "ran").exists()


def test_missing_empty_and_strange(tmp_path: Path) -> None:
    with pytest.raises(BadModelError, match="no file or folder"):
        load(tmp_path / "gone.onnx")
    with pytest.raises(UsageError, match="no file can be called"):
        load(tmp_path / ("x" * 500 + ".onnx"))
    for suffix in ("onnx", "safetensors", "pt2", "xyz"):
        (tmp_path / f"empty.{suffix}").touch()
        with pytest.raises(BadModelError, match="empty"):
            load(tmp_path / f"empty.{suffix}", trust=True)
    with pytest.raises(BadModelError, match=r"no config\.json"):
        load(tmp_path)
    os.mkfifo(tmp_path / "pipe.onnx")
    with pytest.raises(BadModelError, match="neither"):
        load(tmp_path / "pipe.onnx")


def test_other_formats_name_the_known_ones(tmp_path: Path) -> None:
    (tmp_path / "model.tflite").write_bytes(b"GGUF")
    with pytest.raises(UnsupportedError, match=r"\.onnx") as caught:
        load(tmp_path / "model.tflite")
    assert caught.value.exit_code == 3
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UnsupportedError, match="give the folder"):
        load(tmp_path / "config.json")


def test_weights_alone_are_no_model(tmp_path: Path) -> None:
    write_arrays(tmp_path / "w.safetensors", {"w": np.zeros(2)})
    with pytest.raises(BadModelError, match="no graph"):
        load(tmp_path / "w.safetensors")


def test_a_format_added_in_one_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lines(path: Path, dims: object) -> Graph:
        x = t.input("x", tuple(map(int, path.read_text().split())))
        return Graph.of(t.exp(x))

    monkeypatch.setitem(FORMATS, ".shape", ModelFormat(lines, ".shape"))
    (tmp_path / "m.shape").write_text("2 3")
    assert load(tmp_path / "m.shape").outputs[0].shape == (2, 3)
    (tmp_path / "m.other").write_text("2 3")
    with pytest.raises(UnsupportedError) as refused:
        load(tmp_path / "m.other")
    assert ".shape" in refused.value.hint


def test_formats_are_documented() -> None:
    root = Path(__file__).parents[2]
    for place in ("docs/cli.md", "SECURITY.md", "README.md", "src/tensor_graphs/cli/arguments.py"):
        text = (root / place).read_text(encoding="utf-8")
        assert [s for s in FORMATS if s not in text] == [], f"{place} does not name these formats"
