"""Whole PyTorch modules through torch.export: numerics, weights, free sizes, state, structure, errors, `.pt2` files."""

from __future__ import annotations

import copy
import gc
import importlib.util
import logging
import sys
import zipfile
from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils import _pytree  # noqa: E402

import tensor_graphs as tg  # noqa: E402
from tensor_graphs.egraph.evaluate.interpret import evaluate  # noqa: E402
from tensor_graphs.errors import (  # noqa: E402
    BadModelError,
    ExportError,
    ShapeError,
    UnsupportedError,
    UntrustedModelError,
    UsageError,
)
from tensor_graphs.models.torch_export.arrays import _CARRIER, dtypes, to_numpy  # noqa: E402
from tensor_graphs.models.torch_export.export import from_exported, load_module  # noqa: E402
from tensor_graphs.models.torch_export.pt2 import load_pt2  # noqa: E402
from tensor_graphs.models.torch_export.writes import writes_of  # noqa: E402


def to_torch(array: np.ndarray[Any, Any]) -> Any:
    """Return a torch tensor over an array's memory, or a copy if the array is read-only or has negative strides."""
    name = dtypes.name_of(array.dtype)
    if not array.flags.writeable or any(s < 0 for s in array.strides):
        array = np.array(array, copy=True)
    if name in _CARRIER:
        return torch.from_numpy(array.view(_CARRIER[name])).view(dtypes.torch_dtype(name))
    return torch.from_numpy(array)


def _modules() -> Any:
    """The neighbouring modules.py, which is no test and in no package."""
    name = "tensor_graphs_test_modules"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name("modules.py"))
        assert spec is not None and spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


modules = _modules()
X = torch.arange(6, dtype=torch.float32).reshape(2, 3)


def run(graph: Any, inputs: Any, **states: np.ndarray) -> list[np.ndarray]:
    values = {leaf.attr("name"): to_numpy(v) for leaf, v in zip(graph.inputs, inputs, strict=True)}
    return evaluate(graph, values | states)


# ---------------------------------------------------------------- whole models
#: Example -> numbers of composite ops that arrive whole.
COMPOSITES = {
    "gpt2": {"attention": 2, "layer_norm": 5, "gelu_tanh": 2, "linear": 8},
    "llama_sdpa": {"masked_attention": 2, "silu": 2},
    "resnet": {"conv": 8, "batch_norm": 8, "max_pool": 1, "relu": 7},
    "unet": {"group_norm": 11, "conv": 18},
    "encoder": {"softmax": 2, "gelu": 2, "layer_norm": 5},
}


@pytest.mark.parametrize("name", modules.EXAMPLES)
def test_models_match_eager(name: str) -> None:
    module, inputs = modules.example(name)
    graph = load_module(module, inputs)
    with torch.no_grad():
        wanted = [to_numpy(v) for v in _pytree.tree_leaves(module(*inputs))]
    for found, eager in zip(run(graph, inputs), wanted, strict=True):
        assert found.dtype == eager.dtype
        np.testing.assert_allclose(found, eager, rtol=1e-5, atol=1e-5 * float(abs(eager).max()))
    counts, composites = graph.counts(), COMPOSITES.get(name, {})
    assert {op: counts.get(op, 0) for op in composites} == composites


def test_bfloat16_model_is_as_close_as_eager() -> None:
    module, inputs = modules.example("llama")
    with torch.no_grad():
        exact = module(*inputs).numpy()
        half = to_numpy(module.bfloat16()(*inputs)).astype(np.float32)
    graph = load_module(module, inputs)
    assert graph.outputs[0].dtype == "bfloat16" and {d.dtype.name for d in graph.params.values()} == {"bfloat16"}
    found = run(graph, inputs)[0].astype(np.float32)
    assert abs(found - exact).max() < 2 * max(abs(half - exact).max(), 1e-2)


def test_transformer_encoder_layer_of_torch() -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
    x = torch.randn(2, 5, 16)
    np.testing.assert_allclose(run(load_module(layer, (x,)), (x,))[0], layer(x).detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_of_torch(kind: Any) -> None:
    torch.manual_seed(0)
    layer, x = kind(4, 6, num_layers=2, batch_first=True).eval(), torch.randn(2, 3, 4)
    with torch.no_grad():
        wanted = _pytree.tree_leaves(layer(x))
    for found, eager in zip(run(load_module(layer, (x,)), (x,)), wanted, strict=True):
        np.testing.assert_allclose(found, eager, rtol=1e-5, atol=1e-6)


# ---------------------------------------------------------------- weights
def test_params_share_the_module_memory_and_tied_ones_are_one() -> None:
    module, inputs = modules.example("gpt2")
    graph = load_module(module, inputs)
    assert "wte.weight" in graph.params and "lm_head.weight" not in graph.params
    array = graph.params["wte.weight"]
    assert isinstance(array, np.ndarray) and array.ctypes.data == module.wte.weight.data_ptr()
    before = run(graph, inputs)[0]
    with torch.no_grad():
        module.wte.weight.mul_(2)
    assert not np.allclose(run(graph, inputs)[0], before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool, torch.uint8])
def test_torch_arrays_share_memory(dtype: Any) -> None:
    tensor = torch.arange(6).reshape(2, 3).to(dtype)
    array = to_numpy(tensor.T)
    assert array.ctypes.data == tensor.data_ptr() and array.shape == (3, 2)
    back = to_torch(array)
    assert back.dtype == dtype and back.data_ptr() == tensor.data_ptr() and torch.equal(back, tensor.T)
    assert torch.equal(to_torch(array[::-1]), tensor.T.flip(0))


def test_torch_arrays_refuse_what_has_no_array() -> None:
    with pytest.raises(UnsupportedError, match="complex64"):
        to_numpy(torch.zeros(2, dtype=torch.complex64))
    with pytest.raises(UnsupportedError, match="meta"):
        to_numpy(torch.zeros(2, device="meta"))


def test_small_constants_are_constants_and_large_ones_params() -> None:
    small, large = torch.arange(3.0), torch.ones(3, 30000)
    graph = load_module(lambda x: (x + small) @ large + torch.tensor(2.0), (X,))
    assert len(graph.leaves("constant")) == 1 and [p.shape for p in graph.params.values()] == [(3, 30000)]
    np.testing.assert_allclose(run(graph, (X,))[0], ((X + small) @ large + 2).numpy())


# ---------------------------------------------------------------- sizes
def test_free_sizes_get_their_names_and_bind() -> None:
    module, inputs = modules.example("gpt2")
    shapes = {"input_ids": {0: "batch", 1: torch.export.Dim("length", min=2, max=16)}}
    graph = load_module(module, inputs, dynamic_shapes=shapes)
    assert set(graph.free_dims) == {"batch", "length"} and graph.free_dims["length"].max == 16
    ids = torch.randint(50, (3, 9))
    with torch.no_grad():
        np.testing.assert_allclose(
            run(graph.bind({"batch": 3, "length": 9}), (ids,))[0], module(ids), rtol=1e-4, atol=1e-4
        )
    assert set(load_module(module, inputs, dynamic_shapes=shapes, dims={"batch": 2}).free_dims) == {"length"}


@pytest.mark.parametrize("name", ["llama", "encoder"])
def test_free_batch_and_length_of_masked_models(name: str) -> None:
    module, inputs = modules.example(name)
    graph = load_module(
        module, inputs, dynamic_shapes=tuple({0: "b", 1: torch.export.Dim("n", max=16)} for _ in inputs)
    )
    other = (torch.randint(50, (3, 5)), torch.ones(3, 5, dtype=torch.long), torch.arange(5).expand(3, 5))[: len(inputs)]
    with torch.no_grad():
        wanted = _pytree.tree_leaves(module(*other))
    for found, eager in zip(run(graph.bind({"b": 3, "n": 5}), other), wanted, strict=True):
        np.testing.assert_allclose(found, eager, rtol=1e-4, atol=1e-5)


def test_derived_and_unnamed_sizes() -> None:
    n = torch.export.Dim("n", max=64)
    shapes = ({0: 2 * n}, {0: n}, {0: torch.export.Dim.DYNAMIC})
    graph = load_module(lambda a, b, c: (a.view(-1, 2).sum(1) + b, c * 2), (torch.ones(6), torch.ones(3), torch.ones(5)),
                        dynamic_shapes=shapes)  # fmt: skip
    assert set(graph.free_dims) == {"n", "c_0"}
    assert [n.shape for n in graph.bind({"n": 4, "c_0": 2}).inputs] == [(8,), (4,), (2,)]


# ---------------------------------------------------------------- state, structure, calls
class Counter(nn.Module):
    """Adds up what it has seen, in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(3))

    def forward(self, x: Any) -> Any:
        self.total.add_(x.sum(0))
        return self.total * 2


def test_free_sizes_are_numbers_too() -> None:
    """Sizes in arithmetic, in indices from the end, in fills, variances and results; whole ones and quotients of
    them."""

    def f(x: Any, i: Any) -> Any:
        n = x.shape[1]
        return (
            x / n,
            x * (1 / n),
            x / n**0.5,
            torch.full((3,), n),
            x[:, i],
            x.std(1),
            x.var(1, unbiased=False),
            x + n,
            n,
        )

    graph = load_module(
        f, (torch.randn(3, 6), torch.tensor([-1, 0])), dynamic_shapes=({1: torch.export.Dim("n", min=3, max=50)}, None)
    )
    for size in (6, 11):
        x, i = torch.randn(3, size), torch.tensor([-1, 2, -size])[:2]
        for found, wanted in zip(
            evaluate(graph.bind({"n": size}), {"x": x.numpy(), "i": i.numpy()}), f(x, i), strict=True
        ):
            np.testing.assert_allclose(found, np.asarray(wanted), rtol=1e-5, atol=1e-6)


def test_free_sizes_are_rolled_by_any_number() -> None:
    f: Any = lambda x: (
        torch.roll(x, 3, 0),
        torch.roll(x, (-4, 1), (0, 1)),
        torch.fft.fftshift(x, 0),
        torch.fft.ifftshift(x),
    )
    graph = load_module(f, (torch.randn(6, 3),), dynamic_shapes=({0: torch.export.Dim("n", max=50)},))
    for n in (1, 2, 3, 5, 8):
        x = torch.randn(n, 3)
        for found, wanted in zip(run(graph.bind({"n": n}), (x,)), f(x), strict=True):
            np.testing.assert_array_equal(found, wanted)


def test_images_of_free_sizes_are_resampled() -> None:
    """To the size of another image and by fractional factors, to the nearest element and linearly."""
    resized = torch.nn.functional.interpolate
    f: Any = lambda x, y: (
        resized(x, size=y.shape[2:]),
        resized(x, size=y.shape[2:], mode="nearest-exact"),
        resized(x, size=y.shape[2:], mode="bilinear"),
        resized(x, size=y.shape[2:], mode="bilinear", align_corners=True),
        resized(x, scale_factor=1.5),
        resized(x, scale_factor=1.5, mode="bilinear"),
    )
    sizes = [{2: torch.export.Dim(h, min=1, max=64), 3: torch.export.Dim(w, min=1, max=64)} for h, w in ("hw", "kl")]
    graph = load_module(f, (torch.randn(1, 2, 6, 8), torch.randn(1, 1, 9, 5)), dynamic_shapes=tuple(sizes))
    for h, w, k, m in ((6, 8, 9, 5), (1, 1, 1, 1), (4, 6, 8, 3), (13, 7, 5, 20)):
        given = torch.randn(1, 2, h, w), torch.randn(1, 1, k, m)
        bound = graph.bind({n: s for n, s in zip("hwkl", (h, w, k, m)) if n in graph.free_dims})
        for found, wanted in zip(run(bound, given), f(*given), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_mutated_buffers_become_states_with_updates() -> None:
    graph = load_module(Counter(), (X,))
    assert list(graph.updates) == ["total"] and [n.attr("name") for n in graph.leaves("state")] == ["total"]
    np.testing.assert_array_equal(graph.params["total"], np.zeros(3))  # its initial value
    out, total = run(graph, (X,), total=np.ones(3, np.float32))
    np.testing.assert_array_equal(total, X.sum(0).numpy() + 1)
    np.testing.assert_array_equal(out, 2 * total)


class InRegion(nn.BatchNorm1d):
    """A batch norm without a counter of calls, computed in a region that torch.export makes a graph of its own."""

    def forward(self, x: Any) -> Any:
        with torch.autocast("cpu", enabled=False):
            return nn.functional.batch_norm(x, self.running_mean, self.running_var, None, None, True)


@pytest.mark.parametrize(("module", "states"), [(nn.BatchNorm1d(3), 3), (InRegion(3), 2)])
def test_batch_norm_in_training_updates_its_statistics(module: Any, states: int) -> None:
    graph = load_module(module, (X,))
    assert len(graph.updates) == states
    states = {n.attr("name"): to_numpy(module.state_dict()[n.attr("name")].clone()) for n in graph.leaves("state")}
    found = run(graph, (X,), **states)
    with torch.no_grad():
        np.testing.assert_allclose(found[0], module(X), rtol=1e-5, atol=1e-6)
    for name, value in zip(graph.updates, found[1:], strict=True):
        np.testing.assert_allclose(value, module.state_dict()[name], rtol=1e-5, atol=1e-6)


@dataclass
class Output:
    """As models return them."""

    logits: Any
    rest: Any = None


Pair = namedtuple("Pair", ["left", "right"])
torch.export.register_dataclass(Output, serialized_type_name="tensor_graphs.tests.Output")


@pytest.mark.parametrize(
    ("function", "structure", "names"),
    [
        (lambda x: x + 1, None, ("output",)),
        (lambda x: (x + 1,), (0,), ("output0",)),
        (lambda x: [x, (x, None)], [0, (1, None)], ("output0", "output1.0")),
        (lambda x: {"a": x, "b": {"c": x + 1}}, {"a": 0, "b": {"c": 1}}, ("a", "b.c")),
        (lambda x: Output(x + 1), {"logits": 0}, ("logits",)),
        (lambda x: Pair(x, x + 1), (0, 1), ("output0", "output1")),
        (lambda x: (x, 3), (0, 1), ("output0", "output1")),
    ],
)
def test_structure_of_results(function: Any, structure: Any, names: tuple[str, ...]) -> None:
    graph = load_module(function, (X,))
    assert graph.structure == structure and graph.names == names
    assert len(run(graph, (X,))) == len(names)


def test_nested_and_named_arguments_keep_their_order() -> None:
    class Mixer(nn.Module):
        def forward(self, pair: Any, *, scale: Any, flag: bool = False) -> Any:
            return pair[0] * scale - pair[1]["y"] if flag else pair[0]

    graph = load_module(
        Mixer(), ((X, {"y": X + 1}),), example_kwargs={"scale": torch.tensor(3.0), "flag": True}, name="mix"
    )
    assert len(graph.inputs) == 3 and graph.name == "mix"
    np.testing.assert_array_equal(run(graph, (X, X + 1, torch.tensor(3.0)))[0], (X * 3 - X - 1).numpy())


def test_autocast_off_and_no_grad_regions_are_inlined() -> None:
    def f(x: Any) -> Any:
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            y = x.float() @ x.T
        return y + 1

    np.testing.assert_allclose(run(load_module(f, (X,)), (X,))[0], (X @ X.T + 1).numpy())


def test_the_garbage_collector_waits_while_a_module_is_exported() -> None:
    """What torch.export imports and makes stays alive; walking over it again and again takes a third of the time."""
    seen = []

    def f(x: Any) -> Any:
        seen.append(gc.isenabled())
        return x + 1

    load_module(f, (X,))
    assert seen and not any(seen) and gc.isenabled()


# ---------------------------------------------------------------- errors
def test_all_unsupported_operators_are_listed_at_once() -> None:
    def f(x: Any) -> Any:
        return torch.lgamma(x) + torch.lgamma(x + 1) + torch.bernoulli(x) + torch.tanh(torch.fft.rfft(x)).real.sum()

    with pytest.raises(UnsupportedError) as caught:
        load_module(f, (X,))
    assert {"lgamma.default", "tanh.default (of complex numbers)"} <= set(caught.value.missing)
    assert caught.value.missing["lgamma.default"] == 2 and "lgamma.default ×2" in str(caught.value)


def _branch(x: Any) -> Any:
    return x if x.sum() > 0 else -x


def _write(x: Any) -> Any:
    x.add_(1)
    return x * 2


@pytest.mark.parametrize(
    ("function", "error", "text"),
    [
        (_branch, ExportError, "torch.export failed"),
        (lambda x: torch.nn.functional.dropout(x, 0.5, True), UnsupportedError, "dropout|rand|bernoulli"),
        (lambda x: torch.rand(2, 3) + x, UnsupportedError, "rand.default ×1"),
        (lambda x: x[x > 0], UnsupportedError, "data"),
        (_write, UnsupportedError, "writes into its user_input"),
        (lambda x: None, UsageError, "no tensor"),
    ],
)
def test_what_cannot_be_captured_is_named(function: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        load_module(function, (X,))


def test_a_failing_export_writes_no_log() -> None:
    """Torch logs a stack trace of what the ExportError says."""
    said: list[logging.LogRecord] = []
    torch_logger, handler = logging.getLogger("torch._subclasses.fake_tensor"), logging.Handler()
    handler.emit = said.append  # type: ignore[method-assign]
    torch_logger.addHandler(handler)
    try:
        with pytest.raises(ExportError, match="same reduction dim"):
            load_module(nn.Linear(X.shape[-1] + 1, 2), (X,))
    finally:
        torch_logger.removeHandler(handler)
    assert not said and not torch_logger.filters


def test_wrong_calls_are_named() -> None:
    with pytest.raises(UsageError, match="neither"):
        load_module(3, (X,))
    with pytest.raises(ExportError):
        load_module(nn.Linear(3, 2), (X, X))
    with pytest.raises(ExportError) as caught:
        load_module(lambda x: x.reshape(6), (X,), dynamic_shapes=({0: "n"},))
    assert caught.value.hint and caught.value.exit_code == 3


# ---------------------------------------------------------------- .pt2
@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, nn.Module]:
    module = nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 2)).eval()
    path = tmp_path_factory.mktemp("pt2") / "small.pt2"
    torch.export.save(torch.export.export(module, (X,)), path)
    return path, module


def test_pt2_is_refused_unless_trusted(saved: tuple[Path, nn.Module]) -> None:
    path, module = saved
    with pytest.raises(UntrustedModelError) as caught:
        load_pt2(path)
    assert "trust" in caught.value.hint
    graph = load_pt2(path, trust=True)
    assert graph.name == "small" and graph.counts()["gelu"] == 1
    np.testing.assert_allclose(run(graph, (X,))[0], module(X).detach(), rtol=1e-5, atol=1e-6)


def _copy(source: Path, target: Path, change: Any) -> Path:
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for entry in old.namelist():
            new.writestr(entry, change(entry, old.read(entry)))
    return target


class Harmful:
    """Unpickling it would run code; the flag shows whether that happened."""

    ran = False

    def __reduce__(self) -> Any:
        return (setattr, (Harmful, "ran", True))


def test_pickled_content_of_a_trusted_pt2_is_refused(saved: tuple[Path, nn.Module], tmp_path: Path) -> None:
    import io

    buffer = io.BytesIO()
    torch.save(((Harmful(),), {}), buffer)
    bad = _copy(saved[0], tmp_path / "a.pt2", lambda n, d: buffer.getvalue() if "sample_inputs" in n else d)
    with pytest.raises(UntrustedModelError, match="sample inputs"):
        load_pt2(bad, trust=True)
    assert not Harmful.ran
    flip = lambda n, d: (
        d.replace(b'"use_pickle": false', b'"use_pickle": true') if n.endswith("weights_config.json") else d
    )
    with pytest.raises(UntrustedModelError, match="pickled"):
        load_pt2(_copy(saved[0], tmp_path / "b.pt2", flip), trust=True)


@pytest.mark.parametrize("content", [b"", b"garbage", b"PK\x03\x04"])
def test_broken_pt2_files_are_named(content: bytes, tmp_path: Path, saved: tuple[Path, nn.Module]) -> None:
    broken = tmp_path / "broken.pt2"
    broken.write_bytes(content)
    with pytest.raises(BadModelError):
        load_pt2(broken, trust=True)
    cut = saved[0].read_bytes()
    broken.write_bytes(cut[: len(cut) // 2])
    with pytest.raises(BadModelError):
        load_pt2(broken, trust=True)
    with pytest.raises(BadModelError):
        load_pt2(tmp_path / "absent.pt2", trust=True)


def test_other_archives_and_broken_programs_are_named(tmp_path: Path, saved: tuple[Path, nn.Module]) -> None:
    other = tmp_path / "other.pt2"
    with zipfile.ZipFile(other, "w") as archive:
        archive.writestr("hello", "x")
    with pytest.raises(BadModelError, match=r"torch\.export\.save"):
        load_pt2(other, trust=True)
    spoil = lambda n, d: b"{}" if n.endswith("models/model.json") else d
    with pytest.raises(BadModelError, match="cannot read"):
        load_pt2(_copy(saved[0], tmp_path / "c.pt2", spoil), trust=True)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda x: torch.nn.functional.dropout(x, 0.5, training=True), ".eval()"),
        (lambda x: x + torch.randn_like(x), "no random numbers"),
        (lambda x: x[x > 0].sum(), "torch.where"),
        (lambda x: torch.nonzero(x).sum(), "torch.where"),
        (lambda x: torch.fft.fft(x), "view_as_real"),
        (lambda x: x.add_(1), "return the new value"),
        (lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8).dequantize(), "tg.compile"),
    ],
)
def test_what_has_no_builder_says_what_to_do(function: Any, words: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        load_module(function, (torch.randn(4, 8),))
    assert words in caught.value.hint


def test_complex_arguments_are_refused_with_what_to_write() -> None:
    with pytest.raises(UnsupportedError) as caught:
        load_module(lambda x: x * 2, (torch.ones(3, dtype=torch.complex64),))
    assert "complex input" in str(caught.value) and "torch.view_as_complex" in caught.value.hint
    load_module(lambda x: torch.view_as_real(torch.view_as_complex(x) * 2), (torch.ones(3, 2),))
    with pytest.raises(ShapeError, match="two arrays"):
        tg.optimize(lambda x: x * 2, (np.ones(3, complex),))


def test_rows_that_no_mask_can_hide_cost_nothing() -> None:
    """PyTorch answers 0 where -inf hides a whole row; masks of finite numbers have no such row."""
    q = torch.randn(1, 2, 4, 8)
    attend = torch.nn.functional.scaled_dot_product_attention

    def finite(q: Any, seen: Any) -> Any:
        wide = torch.where(seen[:, None, None], 0.0, torch.finfo(torch.float32).min)
        return attend(q, q, q, wide.expand(-1, -1, 4, -1))

    def infinite(q: Any, seen: Any) -> Any:
        wide = torch.where(seen[:, None, None], 0.0, float("-inf"))
        return attend(q, q, q, wide.expand(-1, -1, 4, -1))

    seen = torch.tensor([[True, False, True, True]])
    assert not any(n.op == "where" for n in load_module(finite, (q, seen)).outputs)
    graph = load_module(infinite, (q, seen))
    for mask in (seen, seen & False):
        (found,) = evaluate(graph, {"q": q.numpy(), "seen": mask.numpy()})
        np.testing.assert_allclose(found, infinite(q, mask).numpy(), atol=1e-6)


def test_sizes_that_cannot_be_free_are_named_with_the_reason() -> None:
    dim = torch.export.Dim("rows", max=8)
    with pytest.raises(ExportError) as caught:
        load_module(lambda x: x.reshape(3, 4) * 2, (torch.ones(3, 4),), dynamic_shapes={"x": {0: dim}})
    assert "rows" in caught.value.hint.split("\n", 1)[1]


def test_a_mask_that_is_not_saved_is_known() -> None:
    class Masked(nn.Module):
        def __init__(self, persistent: bool) -> None:
            super().__init__()
            self.register_buffer("mask", torch.ones(40, 40, dtype=torch.bool).tril(), persistent=persistent)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.where(self.mask, x, x * 0.5)

    x = torch.randn(40, 40)
    for persistent in (True, False):
        module = Masked(persistent)
        graph = load_module(module, (x,))
        assert ("mask" in graph.params) == persistent
        assert len(graph.leaves("constant")) == (not persistent)
        values = {"mask": to_numpy(module.mask)} if persistent else {}
        np.testing.assert_array_equal(run(graph, (x,), **values)[0], module(x).numpy())


# ---------------------------------------------------------------- writes
class Written(nn.Module):
    """A module that writes in place; what is done is given."""

    def __init__(self, does: Callable[[nn.Module, Any], Any]) -> None:
        super().__init__()
        self.does, self.layer = does, nn.Linear(3, 3)
        self.register_buffer("kept", torch.arange(12.0).reshape(4, 3))

    def forward(self, x: Any) -> Any:
        """What was given to be done."""
        return self.does(self, x)


def caches(m: Any, x: Any) -> Any:
    """Written twice, read as a whole between and in the end."""
    k = m.kept.index_copy_(0, torch.tensor([1, 3]), x[:2])
    first = k.expand(2, 4, 3).sum()
    m.kept.mul_(2.0)
    return first, k @ x.T, m.kept[1:]


def sums(m: Any, x: Any) -> Any:
    """What was just made is written, also by another name."""
    y = m.layer(x)
    z = y.relu_().detach_()
    z.add_(1)
    return y, z * 2


PLAIN: dict[str, Callable[[Any, Any], Any]] = {
    "a cache": caches, "a sum": sums,
    "filled": lambda m, x: torch.zeros(4, 3).copy_(x[0]).masked_fill_(x > 0, 7.0).clamp_(max=5.0),
    "of another type": lambda m, x: m.kept.add_(torch.ones(4, 3, dtype=torch.float64)) + x,
    "read by nobody": lambda m, x: (m.kept.add_(x), x * 2)[1],
    "a view that is done with": lambda m, x: (m.kept[:2].sum(), m.kept.add_(1.0))[0] + x,
}  # fmt: skip
SEEN: dict[str, Callable[[Any, Any], Any]] = {
    "through a view": lambda m, x: (m.kept[1:].add_(1.0), m.kept * x)[1],
    "beside a view": lambda m, x: (lambda view: (m.kept.add_(1.0), view * x[1:])[1])(m.kept[1:]),
    "beside a view of a view": lambda m, x: (lambda view: (m.kept.add_(x), view * 2)[1])(m.kept.T[1:].detach()),
    "what may be its operand": lambda m, x: (lambda y: (y.type_as(x).add_(1.0), y)[1])(x * 2),
}


@pytest.mark.parametrize("case", [*PLAIN, *SEEN])
def test_what_is_written_in_place_is_seen_by_all_who_read_it(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As eager PyTorch does; without tracing the program again where no view sees the write."""
    module, x = Written((PLAIN | SEEN)[case]).eval(), torch.randn(4, 3)
    program = torch.export.export(module, (x,))
    before = {n: to_numpy(b.clone()) for n, b in module.named_buffers()}
    traced = []
    plain = type(program).run_decompositions
    monkeypatch.setattr(type(program), "run_decompositions", lambda *a, **k: traced.append(1) or plain(*a, **k))
    graph = from_exported(program)
    assert bool(traced) == (case in SEEN)
    found = run(graph, (x,), **{n.attr("name"): before[n.attr("name")] for n in graph.leaves("state")})
    with torch.no_grad():
        wanted = module(x)
        wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    held = dict(module.named_buffers(remove_duplicate=False))
    for value, expected in zip(found, [*wanted, *(held[n] for n in graph.updates)], strict=True):
        np.testing.assert_allclose(value, to_numpy(expected), rtol=1e-5, atol=1e-6)
    changed = {n for n, b in held.items() if n in before and not np.array_equal(to_numpy(b), before[n])}
    assert changed == set(graph.updates)


@pytest.mark.parametrize("layer", [
    nn.Conv1d(4, 6, 4, padding="same", dilation=3), nn.Conv2d(4, 6, (2, 3), padding="same"), nn.Conv2d(4, 6, 3, padding="valid"),
    nn.Conv2d(4, 4, 3, (2, 1), (1, 2), (1, 2), groups=4, bias=False), nn.Conv3d(4, 2, 2), nn.ConvTranspose1d(4, 6, 3, 2, 1, 1),
    nn.ConvTranspose2d(4, 6, 3, 2, 1, 1, dilation=2), nn.ConvTranspose3d(4, 2, 2, 2, groups=2),
], ids=str)  # fmt: skip
def test_convolutions_arrive_whole(layer: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    rank = layer.weight.dim() - 2
    x = torch.randn(2, 4, *(7, 8, 6)[:rank])
    program = torch.export.export(layer.eval(), (x,))
    monkeypatch.setattr(type(program), "run_decompositions", lambda *a: pytest.fail("traced again"))
    (found,) = run(from_exported(program), (x,))
    np.testing.assert_allclose(found, layer(x).detach().numpy(), rtol=1e-4, atol=1e-5)


def test_a_buffer_of_two_names_is_not_written_under_one() -> None:
    module = Written(lambda m, x: (m.kept.add_(1.0), m.again * x)[1]).eval()
    module.register_buffer("again", module.kept)
    assert writes_of(torch.export.export(module, (torch.ones(4, 3),))) is None


def test_a_mask_of_unknown_size_is_refused() -> None:
    class Positive(nn.Module):
        def forward(self, x: Any) -> Any:
            return x[x > 0]

    with pytest.raises(UnsupportedError, match="depends on data"):
        load_module(Positive(), (torch.randn(4, 6),))


def test_pt2_archives_take_no_more_memory_than_their_bytes(tmp_path: Path) -> None:
    """A compressed entry of 2 MB could hold 2 GB, and was inflated before anything was checked."""
    program = torch.export.export(torch.nn.Linear(3, 2), (torch.randn(1, 3),))
    torch.export.save(program, str(tmp_path / "good.pt2"))
    with zipfile.ZipFile(tmp_path / "good.pt2") as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    weights = next(name for name in entries if name.endswith("weights_config.json"))

    def changed(content: bytes, how: int) -> Path:
        with zipfile.ZipFile(tmp_path / "bad.pt2", "w") as archive:
            for name, data in entries.items():
                archive.writestr(name, content if name == weights else data, how if name == weights else None)
        return tmp_path / "bad.pt2"

    load_pt2(changed(entries[weights], zipfile.ZIP_STORED), trust=True)
    with pytest.raises(BadModelError, match="is compressed"):
        load_pt2(changed(b" " * 10_000_000, zipfile.ZIP_DEFLATED), trust=True)
    with pytest.raises(BadModelError, match="not a readable"):
        load_pt2(changed(b"[" * 1_000_000, zipfile.ZIP_STORED), trust=True)
    with zipfile.ZipFile(tmp_path / "shared.pt2", "w") as archive:
        archive.writestr("archive_format", b" " * 10_000)
        for k in range(10):  # the same bytes under other names
            archive.filelist.append(copy.copy(archive.filelist[0]))
            archive.filelist[-1].filename = f"more{k}"
    with pytest.raises(BadModelError, match="larger than the file"):
        load_pt2(tmp_path / "shared.pt2", trust=True)
