"""Recurrent layers of PyTorch and ONNX: one op for all steps, right against PyTorch, loaded without running a step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.egraph.composites.recurrent import UNROLLED
from tensor_graphs.egraph.evaluate.interpret import evaluate
from tensor_graphs.errors import ExportError, UnsupportedError

torch = pytest.importorskip("torch", reason="the layers are PyTorch's")
from torch import nn  # noqa: E402
from torch.utils import _pytree  # noqa: E402

from tensor_graphs.models.torch_export import aten_recurrent, export  # noqa: E402
from tensor_graphs.models.torch_export.arrays import to_numpy  # noqa: E402
from tensor_graphs.models.torch_export.export import load_module  # noqa: E402

VARIANTS: dict[str, tuple[type[nn.Module], dict[str, Any]]] = {
    "lstm": (nn.LSTM, {"num_layers": 2}),
    "lstm_both_ways": (nn.LSTM, {"num_layers": 2, "bidirectional": True, "batch_first": True}),
    "lstm_projected": (nn.LSTM, {"num_layers": 2, "bidirectional": True, "proj_size": 3}),
    "lstm_projected_without_biases": (nn.LSTM, {"proj_size": 3, "bias": False}),
    "gru": (nn.GRU, {"num_layers": 3, "bidirectional": True}),
    "gru_without_biases": (nn.GRU, {"bias": False, "batch_first": True}),
    "rnn_tanh": (nn.RNN, {"num_layers": 2}),
    "rnn_relu": (nn.RNN, {"nonlinearity": "relu", "bidirectional": True, "batch_first": True}),
}
ERROR = {torch.float32: 1e-6, torch.float64: 1e-14, torch.bfloat16: 2e-2}


def layer_of(name: str, dtype: Any = torch.float32) -> tuple[nn.Module, dict[str, Any]]:
    torch.manual_seed(0)
    kind, options = VARIANTS[name]
    return kind(4, 6, **options).eval().to(dtype), options


def firsts(layer: nn.Module, batch: tuple[int, ...], dtype: Any) -> Any:
    """Initial states for a batch of some shape."""
    count = layer.num_layers * (2 if layer.bidirectional else 1)
    h = torch.randn(count, *batch, layer.proj_size or layer.hidden_size, dtype=dtype)
    return (h, torch.randn(count, *batch, layer.hidden_size, dtype=dtype)) if layer.mode == "LSTM" else h


def values(graph: Any, inputs: Any, **how: Any) -> list[np.ndarray[Any, Any]]:
    names = [n.attr("name") for n in graph.inputs]
    return evaluate(graph, dict(zip(names, map(to_numpy, _pytree.tree_leaves(inputs)), strict=True)), **how)


#: Every pair of layer, dtype, batched and given initial states.
PAIRS = [
    (name, dtype, batched, batched == bool((row + column) % 2))
    for row, name in enumerate(VARIANTS) for column, dtype in enumerate(ERROR) for batched in (True, False)
]  # fmt: skip


@pytest.mark.parametrize(("name", "dtype", "batched", "given"), PAIRS, ids=str)
def test_all_variants_agree_with_torch(name: str, dtype: Any, batched: bool, given: bool) -> None:
    layer, options = layer_of(name, dtype)
    shape = ((2, 5, 4) if options.get("batch_first") else (5, 2, 4)) if batched else (5, 4)
    x = torch.randn(shape, dtype=dtype)
    inputs = (x, firsts(layer, (2,) if batched else (), dtype)) if given else (x,)
    graph = load_module(layer, inputs)
    assert graph.counts()["recurrent"] == 1
    with torch.no_grad():
        wanted = _pytree.tree_leaves(layer(*inputs))
    for found, want in zip(values(graph, inputs), wanted, strict=True):
        assert found.dtype == to_numpy(want).dtype
        np.testing.assert_allclose(found.astype(np.float64), want.double(), rtol=0, atol=ERROR[dtype])


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
def test_cells_beside_layers(kind: Any) -> None:
    """A cell alone is a few products; what is written out for it leaves layers beside it whole."""

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.layer = kind(4, 5), nn.GRU(5, 6)

        def forward(self, x: Any) -> Any:
            found = self.cell(x)
            return self.layer((found[0] if isinstance(found, tuple) else found)[None])[0]

    both, x = Both().eval(), torch.randn(3, 4)
    graph = load_module(both, (x,))
    assert graph.counts()["recurrent"] == 1
    np.testing.assert_allclose(values(graph, (x,))[0], both(x).detach(), rtol=0, atol=1e-6)


class Loop(nn.Module):
    """A Python loop over a cell: the states of every step."""

    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: Any, state: Any) -> Any:
        found = []
        for step in x:
            state = self.cell(step, state)
            found.append(torch.cat(state, -1) if isinstance(state, tuple) else state)
        return torch.stack(found)


CELLS: dict[str, Any] = {
    "lstm": lambda **how: nn.LSTMCell(4, 5, **how),
    "gru": lambda **how: nn.GRUCell(4, 5, **how),
    "tanh": lambda **how: nn.RNNCell(4, 5, **how),
    "relu": lambda **how: nn.RNNCell(4, 5, nonlinearity="relu", **how),
}


def states_of(cell: nn.Module, *shape: int, dtype: Any = torch.float32) -> Any:
    first = [torch.randn(shape, dtype=dtype) for _ in range(2)]
    return tuple(first) if isinstance(cell, nn.LSTMCell) else first[0]


@pytest.mark.parametrize("how", [{}, {"bias": False}, {"dtype": torch.float64}, {"dtype": torch.bfloat16}], ids=str)
@pytest.mark.parametrize("name", CELLS)
def test_loops_over_cells_agree_with_torch_and_are_not_decomposed(
    name: str, how: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither while torch.export traces the loop nor after it."""
    torch.manual_seed(1)
    cell, dtype = CELLS[name](**how).eval(), how.get("dtype", torch.float32)
    inputs = (torch.randn(7, 3, 4, dtype=dtype), states_of(cell, 3, 5, dtype=dtype))
    monkeypatch.setattr(export, "_decompositions", lambda _: pytest.fail("decomposed"))
    graph = load_module(Loop(cell), inputs)
    with torch.no_grad():
        wanted = Loop(cell)(*inputs)
    (found,) = values(graph, inputs)
    assert found.dtype == to_numpy(wanted).dtype
    np.testing.assert_allclose(found.astype(np.float64), wanted.double(), rtol=0, atol=ERROR[dtype])


def test_a_cell_with_a_free_batch_size() -> None:
    torch.manual_seed(2)
    cell = nn.GRUCell(4, 5).eval()
    graph = load_module(cell, (torch.randn(3, 4), torch.randn(3, 5)), dynamic_shapes=({0: "B"}, {0: "B"}))
    inputs = (torch.randn(6, 4), torch.randn(6, 5))
    assert set(graph.free_dims) == {"B"}
    found = values(graph.bind({"B": 6}), inputs)[0]
    np.testing.assert_allclose(found, cell(*inputs).detach(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("x, state", [((3, 7), (3, 5)), ((3, 4), (3, 6)), ((3, 4), (1, 5))], ids=str)
@pytest.mark.parametrize("name", CELLS)
def test_cells_refuse_operands_that_torch_refuses(name: str, x: tuple[int, ...], state: tuple[int, ...]) -> None:
    cell = CELLS[name]().eval()
    with pytest.raises(ExportError):
        load_module(cell, (torch.randn(x), states_of(cell, *state)))


def test_the_number_of_steps_does_not_change_what_is_loaded() -> None:
    """Neither nodes nor the operators that torch.export traces."""
    layer = nn.GRU(4, 6, num_layers=2).eval()
    few, many = (load_module(layer, (torch.randn(steps, 1, 4),)) for steps in (3, 20_000))
    assert few.counts() == many.counts()


def test_shapes_are_only_given_to_fake_tensors() -> None:
    """While one thread exports, what another computes stays right; afterwards all is as it was."""
    op = torch.ops.aten.gru.input
    before = dict(op.py_kernels)
    layer, x = nn.GRU(4, 6).eval(), torch.randn(5, 2, 4)
    args = (x, torch.zeros(1, 2, 6), list(layer.parameters()), True, 1, 0.0, False, False, False)
    with torch.no_grad(), aten_recurrent.known_shapes(), aten_recurrent.known_shapes():
        found = layer(x)[0]
        key = torch._C.DispatchKey.CompositeImplicitAutograd
        spelled = op.py_kernels[key](*args)[0]
        assert op.py_kernels[key] is not before.get(key)
    torch.testing.assert_close(found, spelled)
    assert op.py_kernels == before


def test_dropout_in_training_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="dropout"):
        load_module(nn.LSTM(4, 6, num_layers=2, dropout=0.5).train(), (torch.randn(5, 2, 4),))


def test_few_steps_are_also_searched_written_out() -> None:
    """Both forms are in one class: steps in simpler ops, and the layer's kernel."""
    layer = nn.GRU(4, 6).eval()
    short, long = (tg.saturate(layer, (torch.randn(steps, 1, 4),)).view for steps in (3, UNROLLED + 1))
    assert "sigmoid" in set(short.op) and "recurrent" in set(short.op)
    assert "sigmoid" not in set(long.op) and "recurrent" in set(long.op)


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_free_steps_and_batches(backend: str) -> None:
    layer = nn.LSTM(4, 6, bidirectional=True, batch_first=True).eval()
    shapes = ({0: "batch", 1: "steps"},)
    program = tg.optimize(
        layer, (torch.randn(2, 5, 4),), dynamic_shapes=shapes, backend=backend, budget=5, measure=False
    )
    assert {"batch", "steps"} <= set(program.plan.sizes), program.report.warnings
    for batch, steps in ((1, 1), (3, 9)):
        x = torch.randn(batch, steps, 4)
        with torch.no_grad():
            wanted = _pytree.tree_leaves(layer(x))
        for found, want in zip(_pytree.tree_leaves(program(x)), wanted, strict=True):
            np.testing.assert_allclose(found, want, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("kind", "gates"), [("RNN", 1), ("GRU", 3), ("LSTM", 4)])
@pytest.mark.parametrize(("direction", "count"), [("forward", 1), ("reverse", 1), ("bidirectional", 2)])
def test_lengths_per_sample_are_those_of_onnx_runtime(
    kind: str, gates: int, direction: str, count: int, tmp_path: Path
) -> None:
    onnx, runtime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    random, names = np.random.default_rng(0), ["x", "w", "r", "", "lengths", "first"]
    node = onnx.helper.make_node(kind, names, ["y", "last"], hidden_size=2, direction=direction)
    given = {"w": (count, gates * 2, 3), "r": (count, gates * 2, 2), "first": (count, 4, 2)}
    weights = [onnx.numpy_helper.from_array(random.standard_normal(s).astype("f"), n) for n, s in given.items()]
    inputs = [
        onnx.helper.make_tensor_value_info("x", 1, [5, 4, 3]),
        onnx.helper.make_tensor_value_info("lengths", 6, [4]),
    ]
    outputs = [onnx.helper.make_tensor_value_info(n, 1, None) for n in ("y", "last")]
    graph = onnx.helper.make_graph([node], "g", inputs, outputs, weights)
    onnx.save(
        onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 14)], ir_version=8),
        tmp_path / "m.onnx",
    )
    feeds = {"x": random.standard_normal((5, 4, 3)).astype("f"), "lengths": np.array([3, 0, 5, 1], np.int32)}
    wanted = runtime.InferenceSession(tmp_path / "m.onnx").run(None, feeds)
    for found, want in zip(evaluate(tg.load(tmp_path / "m.onnx"), feeds), wanted, strict=True):
        np.testing.assert_allclose(found, want, atol=1e-5)
