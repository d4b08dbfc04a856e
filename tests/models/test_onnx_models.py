"""Whole models exported by torch.onnx, loaded here and compared with ONNX's reference evaluator and with torch."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")

from tensor_graphs.egraph.evaluate.interpret import evaluate  # noqa: E402
from tensor_graphs.egraph.ir.file_array import FileArray  # noqa: E402
from tensor_graphs.models.onnx.load import load_onnx  # noqa: E402


class Bert(torch.nn.Module):  # type: ignore[misc]
    """Embeddings with positions, encoder layers with a padding mask, a pooled head."""

    def __init__(self, width: int = 32, layers: int = 1) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(100, width)
        self.places = torch.nn.Embedding(64, width)
        layer = torch.nn.TransformerEncoderLayer(width, 4, 64, activation="gelu", batch_first=True)
        self.body = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = torch.nn.Linear(width, 5)

    def forward(self, ids: Any, mask: Any) -> Any:
        place = torch.arange(ids.shape[1], device=ids.device)
        x = self.words(ids) + self.places(place)
        x = self.body(x, src_key_padding_mask=mask == 0)
        return torch.log_softmax(self.head(torch.tanh(x[:, 0])), -1), x


class Cnn(torch.nn.Module):  # type: ignore[misc]
    """Strided, grouped and dilated convolutions, norms, pools, an upsampling branch, a linear head."""

    def __init__(self) -> None:
        super().__init__()
        nn = torch.nn
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        self.pool = nn.MaxPool2d(3, 2, 1, ceil_mode=True)
        self.grouped = nn.Sequential(
            nn.Conv2d(16, 16, 3, padding=2, dilation=2, groups=4), nn.GroupNorm(4, 16), nn.SiLU()
        )
        self.up = nn.Sequential(
            nn.ConvTranspose2d(16, 8, 2, 2), nn.Hardswish(), nn.AvgPool2d(2, 2, count_include_pad=False)
        )
        self.head = nn.Linear(16 + 8, 10)

    def forward(self, x: Any) -> Any:
        x = self.pool(self.stem(x))
        y = self.grouped(x) + x
        y = torch.nn.functional.interpolate(y, scale_factor=2, mode="nearest")[:, :, ::2, ::2]
        z = torch.cat([y, self.up(x)], 1)
        return torch.softmax(self.head(torch.nn.functional.adaptive_avg_pool2d(z, 1).flatten(1)), -1)


def export(model: Any, inputs: tuple[Any, ...], file: Path, **options: Any) -> None:
    """torch's exporter, quietly."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(model.eval(), inputs, str(file), dynamo=True, verbose=False, **options)


def agree(file: Path, model: Any, inputs: dict[str, Any], **options: Any) -> Any:
    """Compare the loaded graph with the reference evaluator and with the module itself; gives the graph."""
    from onnx.reference import ReferenceEvaluator

    graph = load_onnx(file, **options)
    values = {k: v.numpy() for k, v in inputs.items()}
    found = evaluate(graph.bind({}) if not graph.free_dims else graph.bind(sizes_of(graph, values)), values)
    with torch.no_grad():
        direct = model(*inputs.values())
    direct = direct if isinstance(direct, tuple) else (direct,)
    for value, wanted, own in zip(found, ReferenceEvaluator(str(file)).run(None, values), direct, strict=True):
        np.testing.assert_allclose(value, wanted, rtol=2e-4, atol=2e-5)
        np.testing.assert_allclose(value, own.numpy(), rtol=2e-4, atol=2e-5)
    return graph


def sizes_of(graph: Any, values: dict[str, Any]) -> dict[str, int]:
    """The named sizes that the values imply."""
    return {str(d): n for i in graph.inputs for d, n in zip(i.shape, values[i.attr("name")].shape) if str(d) != str(n)}


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    torch.manual_seed(0)
    model, file = Bert().eval(), tmp_path_factory.mktemp("bert") / "bert.onnx"
    ids, mask = torch.randint(0, 100, (2, 7)), torch.ones(2, 7, dtype=torch.int64)
    axes = {0: torch.export.Dim("batch", min=1, max=16), 1: torch.export.Dim("seq", min=2, max=64)}
    export(model, (ids, mask), file, dynamic_shapes=({**axes}, {**axes}), input_names=["ids", "mask"])
    return file, model


@pytest.mark.parametrize(("batch", "seq"), [(2, 7), (3, 5)])
def test_bert_with_free_sizes(bert: tuple[Path, Any], batch: int, seq: int) -> None:
    """One graph with free batch and sequence sizes is right at several of them."""
    file, model = bert
    mask = torch.ones(batch, seq, dtype=torch.int64)
    mask[0, 3:] = 0
    graph = agree(file, model, {"ids": torch.randint(0, 100, (batch, seq)), "mask": mask})
    assert set(graph.free_dims) == {"batch", "seq"}
    assert len(graph.params) >= 12


def test_bert_with_given_sizes(bert: tuple[Path, Any]) -> None:
    """With `dims` all shapes are ints, and shape arithmetic leaves no integer ops on shapes behind."""
    file, model = bert
    inputs = {"ids": torch.randint(0, 100, (2, 9)), "mask": torch.ones(2, 9, dtype=torch.int64)}
    graph = agree(file, model, inputs, dims={"batch": 2, "seq": 9})
    assert not graph.free_dims
    assert all(isinstance(d, int) for node in graph.nodes() for d in node.shape)


@pytest.fixture(scope="module")
def cnn(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, Any]:
    torch.manual_seed(1)
    model, file = Cnn().eval(), tmp_path_factory.mktemp("cnn") / "cnn.onnx"
    x = torch.randn(2, 3, 33, 30)
    export(model, (x,), file, input_names=["x"])
    return file, model, x


def test_cnn(cnn: tuple[Path, Any, Any]) -> None:
    """Convolutions, pools and norms against both references."""
    file, model, x = cnn
    graph = agree(file, model, {"x": x})
    counts = graph.counts()
    assert counts["conv"] >= 3 and counts["max_pool"] == 1


def test_weights_stay_on_disk(cnn: tuple[Path, Any, Any], tmp_path: Path) -> None:
    """External weights are bound lazily, and the values are right."""
    file, model, x = cnn
    loaded, moved = onnx.load(str(file)), tmp_path / "cnn.onnx"
    onnx.save_model(loaded, str(moved), save_as_external_data=True, location="weights.bin", size_threshold=0)
    graph = agree(moved, model, {"x": x})
    assert all(isinstance(data, FileArray) for data in graph.params.values())
    assert len(graph.params) > 5


class Decoder(torch.nn.Module):  # type: ignore[misc]
    """One llama-like layer: rotary embedding, grouped causal attention, RMS norm, gated linear unit."""

    def __init__(self, width: int = 32, heads: int = 4, shared: int = 2) -> None:
        super().__init__()
        nn = torch.nn
        self.heads, self.groups, self.size = heads, heads // shared, width // heads
        self.words, self.norm = nn.Embedding(50, width), nn.RMSNorm(width)
        self.q, self.out = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.k, self.v = (nn.Linear(width, self.groups * self.size, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(width, 64, bias=False) for _ in range(2))
        self.down = nn.Linear(64, width, bias=False)
        self.register_buffer("turns", 10000 ** -(torch.arange(0, self.size, 2).float() / self.size))

    def rotated(self, x: Any, angle: Any) -> Any:
        half = self.size // 2
        return x * angle.cos() + torch.cat([-x[..., half:], x[..., :half]], -1) * angle.sin()

    def forward(self, ids: Any) -> Any:
        x = self.words(ids)
        batch, rows = ids.shape
        angle = (torch.arange(rows).float()[:, None] * self.turns).repeat(1, 2)
        y = self.norm(x)
        q, k, v = (f(y).view(batch, rows, -1, self.size).transpose(1, 2) for f in (self.q, self.k, self.v))
        q, k = self.rotated(q, angle), self.rotated(k, angle)
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, rows, -1))
        y = self.norm(x)
        return x + self.down(torch.nn.functional.silu(self.gate(y)) * self.up(y))


@pytest.mark.parametrize("opset", [18, 23])
def test_decoder(opset: int, tmp_path: Path) -> None:
    """At opset 23 attention and RMS norm arrive as one node each; at 18 they are spelled out."""
    torch.manual_seed(4)
    model, file = Decoder().eval(), tmp_path / "decoder.onnx"
    axes = {0: torch.export.Dim("batch", min=1, max=16), 1: torch.export.Dim("seq", min=2, max=64)}
    ids = torch.randint(0, 50, (2, 7))
    export(model, (ids,), file, dynamic_shapes=(axes,), input_names=["ids"], opset_version=opset)
    graph = agree(file, model, {"ids": torch.randint(0, 50, (3, 9))})
    counts = graph.counts()
    assert (counts.get("attention", 0), counts.get("rms_norm", 0)) == ((1, 2) if opset == 23 else (0, 0))
    if opset == 23:
        (node,) = (n for n in graph.nodes() if n.op == "attention")
        assert node.attr("causal")


class Recurrent(torch.nn.Module):
    """Bidirectional layers of both kinds with gates."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.gru = (kind(6, 4, bidirectional=True) for kind in (torch.nn.LSTM, torch.nn.GRU))

    def forward(self, x: Any) -> Any:
        return self.lstm(x)[0], self.gru(x)[0]


def test_recurrent_layers(tmp_path: Path) -> None:
    """Bidirectional recurrent layers, unrolled."""
    torch.manual_seed(3)
    model, x, file = Recurrent().eval(), torch.randn(5, 2, 6), tmp_path / "rnn.onnx"
    export(model, (x,), file, input_names=["x"])
    found = evaluate(load_onnx(file), {"x": x.numpy()})
    with torch.no_grad():
        for kind, value, wanted in zip(("LSTM", "GRU"), found, model(x), strict=True):
            np.testing.assert_allclose(value, wanted.numpy(), rtol=1e-4, atol=1e-5, err_msg=kind)
