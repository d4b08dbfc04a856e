"""Quantization of a graph's weights: the numbers against their definition, which weights are taken, what a plan
stores."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.backends.program import weights_on_device
from tensor_graphs.backends.registry import backend
from tensor_graphs.backends.runtime import upload
from tensor_graphs.backends.runtime.marshalling import array_of
from tensor_graphs.egraph.builders import builders as t
from tensor_graphs.egraph.evaluate.interpret import evaluate
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.ir.weight_data import load_data
from tensor_graphs.egraph.types import dtypes
from tensor_graphs.egraph.types.dtypes import numpy_dtype
from tensor_graphs.errors import UnsupportedError, UsageError
from tensor_graphs.models.common import quantization, quantized_graph
from tensor_graphs.models.common.quantized_graph import quantized

RNG = np.random.default_rng(0)
NO_GPU = backend("torch_cuda").unavailable()
ON_GPU = [pytest.mark.gpu, pytest.mark.skipif(bool(NO_GPU), reason=NO_GPU or "")]


def decoded(parts: dict[str, Any], form: str) -> tg.Tensor:
    """The expression of a weight in the encoding `form` over params `w.q` and `w.scale` with the types of `parts`."""
    q, scale = (t.param(f"w.{p}", parts[p].shape, dtypes.name_of(parts[p].dtype)) for p in ("q", "scale"))
    return quantization.dequantized(form, q, scale)


def expanded(form: str, weight: np.ndarray, dtype: str) -> np.ndarray:
    parts: dict[str, Any] = quantization.encoded(weight, form, dtype)
    node = decoded(parts, form)
    found = evaluate([node], {}, params={f"w.{n}": p for n, p in parts.items()})[0]
    assert found.dtype == numpy_dtype(dtype) and found.shape == weight.shape
    return found.astype(np.float32)


@pytest.mark.parametrize(("form", "largest"), [("int8", 1 / 254), ("int4", 1 / 8), ("fp8", 1 / 16), ("mxfp4", 1 / 4)])
@pytest.mark.parametrize("size", [256, 96])
def test_a_number_is_off_by_at_most_a_step(form: str, largest: float, size: int) -> None:
    weight = RNG.standard_normal((6, size)).astype(np.float32)
    weight[2] = 0.0
    group = quantization.group_of(form, size)
    found = expanded(form, weight, "float32")
    step = np.abs(weight.reshape(6, -1, group)).max(-1).repeat(group, 1) * largest
    assert (np.abs(found - weight) <= step * 1.001).all() and not found[2].any()
    assert np.abs(found - weight).max() > 0


@pytest.mark.parametrize("form", ["int8", "int4", "fp8", "mxfp4"])
def test_a_weight_computed_on_a_device_has_the_bits_of_numpy(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it is stored in 16 bits; a weight whose sums may be rounded otherwise is left to NumPy."""
    monkeypatch.setattr(weights_on_device, "GPU_KIND", "cpu")
    monkeypatch.setattr(weights_on_device, "LEAST_BYTES", 1)
    weight = RNG.standard_normal((64, 256)).astype(np.float32)
    parts: dict[str, Any] = quantization.encoded(weight, form, "float32")
    params = {f"w.{n}": p for n, p in parts.items()}
    node = decoded(parts, form)
    for term in (node, t.cast(node, "bfloat16"), t.transpose(t.cast(node, "float16"))):
        found = weights_on_device.computed_weight(term, params, "cpu")
        want = np.ascontiguousarray(evaluate([term], {}, params=params)[0])
        assert found is not None and tuple(found.shape) == term.shape
        np.testing.assert_array_equal(array_of(found).view(np.uint8), want.view(np.uint8))
    for other in (
        t.cast(t.cast(node, "float64"), "float16"),
        t.sum(node, (0,)),
        t.matmul(node, t.transpose(node)),
        t.param("w.q", (64, 256), "int8"),
    ):
        assert weights_on_device.computed_weight(other, params, "cpu") is None


def test_every_code_of_mxfp4_stands_for_its_value() -> None:
    values = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.5, -1, -1.5, -2, -3, -4, -6, 6] * 2, np.float32)[None]
    np.testing.assert_array_equal(expanded("mxfp4", values * 0.25, "bfloat16"), values * 0.25)
    ties = np.resize(np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0], np.float32), (1, 32))
    even = np.resize(np.array([0, 1, 1, 2, 2, 4, 4, 6], np.float32), (1, 32))
    np.testing.assert_array_equal(expanded("mxfp4", ties, "float32"), even)


def test_codes_are_packed_in_halves_of_a_unit() -> None:
    codes = np.arange(64, dtype=np.uint8)[None] % 16
    found = quantization.packed(codes)
    assert found.shape == (1, 32) and (found[0, :16] & 15 == np.arange(16)).all()
    assert (found[0, :16] >> 4 == (16 + np.arange(16)) % 16).all()


def test_weights_that_are_no_finite_matrix_of_a_known_form_are_refused() -> None:
    with pytest.raises(UsageError, match="finite"):
        quantization.encoded(np.full((2, 32), np.nan, np.float32), "int8", "float32")
    with pytest.raises(UsageError, match="'int5'"):
        quantization.check_form("int5")
    with pytest.raises(UnsupportedError, match="multiple of 32"):
        quantization.group_of("mxfp4", 40)


def model() -> Graph:
    """Two products, one with a transposed weight; an embedding table that the output matrix is, too; a small weight."""
    shapes = {"table": (80, 64), "up": (96, 64), "down": (96, 64), "small": (4, 4)}
    leaf = {n: t.param(n, s) for n, s in shapes.items()}
    x = t.gather(leaf["table"], t.input("ids", (3,), "int64"))
    y = t.matmul(t.tanh(t.matmul(x, t.transpose(leaf["up"]))), leaf["down"])
    y = y + t.pad(t.matmul(y[:, :4], leaf["small"]), [(0, 0), (0, 60)])
    params = {n: RNG.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    return Graph.of(t.matmul(y, t.transpose(leaf["table"])), params=params)


def test_matrices_of_products_are_quantized() -> None:
    graph, done = quantized(model(), "int8")
    assert done.weights == 3 and done.before == (2 * 96 + 80) * 64 * 4 and 0 < done.error < 0.01
    assert {n for n in graph.params if "." in n} == {
        f"{n}.{p}" for n in ("up", "down", "table") for p in ("q", "scale")
    }
    assert {"table", "small"} <= {*graph.params}, "rows are looked up in the table as it is"
    (lookup,) = (n for n in graph.nodes() if n.op == "gather")
    assert lookup.args[0].op == "param"
    ids = {"ids": np.array([1, 5, 7])}
    plain, found = (evaluate(g, ids, float64=True)[0] for g in (model_with(graph), graph))
    assert 0 < np.linalg.norm(plain - found) / np.linalg.norm(plain) < 0.05


def model_with(graph: Graph) -> Graph:
    """The model with the weights of a quantized one before they were quantized."""
    own = model()
    params = {n: graph.params[n] if n in graph.params else graph.params[f"{n}.q"].stored[0] for n in own.params}  # type: ignore[union-attr]
    return Graph.of(own.outputs[0], params=params)


def test_products_that_are_excepted_keep_their_weights() -> None:
    x, w, v = t.input("x", (1, 64)), t.param("w", (128, 64)), t.param("v", (80, 128))
    logits = t.matmul(t.tanh(t.matmul(x, t.transpose(w))), t.transpose(v))
    params = {"w": np.ones((128, 64), np.float32), "v": np.ones((80, 128), np.float32)}
    found, done = quantized(Graph.of(logits, params=params), "int4", but=[t.cast(logits, "float64")])
    assert done.weights == 1 and "v" in found.params
    with pytest.raises(UnsupportedError, match="no weight"):
        quantized(Graph.of(t.tanh(x)), "int4")
    with pytest.raises(UsageError, match="no data"):
        quantized(Graph.of(logits), "int4")


def test_a_memory_limit_chooses_packed_storage(tmp_path: Path) -> None:
    x = tg.input("x", (1, 256))
    weight = RNG.standard_normal((512, 256)).astype(np.float32)
    options: dict[str, Any] = {"costdb": tmp_path, "measure": False, "backend": "auto", "quantize": "int4"}
    w = tg.param("w", weight.shape)
    expanded = 4 * weight.size
    tight = tg.optimize(x @ w.T, params={"w": weight}, memory_limit=expanded // 4, **options)
    assert tight.plan is not None and tight.report is not None
    read = [o.type.nbytes for s in tight.plan.steps for n, o in s.call.operands.items() if o.type.dtype == "uint8"]
    assert read == [weight.size // 2] and "int4: 1 weight," in str(tight.report)
    given = RNG.standard_normal((1, 256)).astype(np.float32)
    wanted = given @ expanded_int4(weight).T
    np.testing.assert_allclose(tight(given), wanted, rtol=1e-4, atol=1e-4)


def expanded_int4(weight: np.ndarray) -> np.ndarray:
    return expanded("int4", weight, "float32")


def test_weights_that_quantization_would_destroy_are_kept() -> None:
    x, w, v = (
        tg.input("x", (3, 128), "float16"),
        tg.param("w", (128, 64), "float16"),
        tg.param("v", (128, 64), "float16"),
    )
    small = (RNG.standard_normal((128, 64)) * 1e-7).astype(np.float16)  # scales below the smallest float16
    params = {"w": small, "v": RNG.standard_normal((128, 64)).astype(np.float16)}
    _, done = quantized(Graph.of(x @ w + x @ v, params=params), "int8")
    assert list(done.kept) == ["w [128, 64]"] and done.weights == 1 and done.error < 0.01
    assert "1 kept (w [128, 64]: quantized it would differ by more than 50% of its norm)" in str(done)
    with pytest.raises(UnsupportedError, match="no weight can be quantized"):
        quantized(Graph.of(x @ w, params={"w": small}), "int8")


@pytest.mark.parametrize(
    ("form", "shapes", "message"),
    [
        ("int4", [(77, 91)], "w0 [77, 91]: an odd number of inputs (77): two numbers of 4 bits share a byte"),
        ("mxfp4", [(90, 100)], "w0 [90, 100]: 90 inputs are no multiple of 32, the group size of mxfp4"),
        ("int8", [(64, 63)], "w0 [64, 63]: fewer than 4096 numbers"),
        ("mxfp4", [(90, 100)] * 5, "w0 [90, 100], w1 [90, 100], w2 [90, 100] and 2 more: 90 inputs are no multiple"),
        ("mxfp4", [(90, 100), (90, 8)], "w0 [90, 100]: 90 inputs are no multiple of 32, the group size of mxfp4; w1 [90, 8]: fewer"),
    ],
)  # fmt: skip
def test_a_refusal_names_weights_and_reasons(form: str, shapes: list[tuple[int, int]], message: str) -> None:
    weights = {f"w{i}": np.ones(shape, np.float32) for i, shape in enumerate(shapes)}
    outputs = [tg.input("x", (3, shapes[0][0])) @ tg.param(n, w.shape) for n, w in weights.items()]
    with pytest.raises(UnsupportedError) as error:
        quantized(Graph.of(outputs, params=weights), form)
    assert f"no weight can be quantized to {form}: {message}" in str(error.value) and "hint" not in str(error.value)


def test_the_error_of_large_weights_is_finite() -> None:
    large = (RNG.standard_normal((128, 64)) * 1e37).astype(np.float32)
    _, done = quantized(Graph.of(tg.input("x", (3, 128)) @ tg.param("w", (128, 64)), params={"w": large}), "int8")
    assert 0 < done.error < 0.01


@pytest.mark.parametrize("form", quantization.FORMS)
def test_a_matrix_is_encoded_in_blocks_of_rows(monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    weight = np.random.default_rng(0).normal(size=(37, 128)).astype(np.float32)
    whole = quantization.encoded(weight, form, "float32")
    monkeypatch.setattr(quantization, "ENCODED", 5 * 128)
    found = quantization.encoded(weight, form, "float32")
    assert all(np.array_equal(found[n], whole[n]) and found[n].dtype == whole[n].dtype for n in whole)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("form", quantization.FORMS)
def test_the_largest_numbers_of_a_dtype_stay_finite(form: str, dtype: str) -> None:
    kind = numpy_dtype(dtype)
    largest = {"float32": 3.4028234e38, "float16": 65504.0, "bfloat16": 3.3895313892515355e38}[dtype]
    weight = (np.linspace(-1, 1, 128).reshape(2, 64) * largest).astype(kind)
    parts = quantization.encoded(weight, form, dtype)
    term = t.cast(decoded(parts, form), dtype)
    (found,) = evaluate([term], {}, params={f"w.{n}": v for n, v in parts.items()})
    assert np.isfinite(found.astype(np.float32)).all()
    assert np.abs(found.astype(np.float64) - weight.astype(np.float64)).max() < 0.3 * largest


def test_a_weight_is_encoded_once_for_several_graphs_and_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Codes that are in use and scales are those of the first load; a second graph quantizes nothing anew; copies are
    independent."""
    calls: list[Any] = []
    real = quantized_graph.encoded
    monkeypatch.setattr(quantized_graph, "encoded", lambda *a: calls.append(a[-1]) or real(*a))
    data = np.random.default_rng(0).standard_normal((64, 256), np.float32)
    graph = Graph.of([t.matmul(t.input("x", (1, 256)), t.transpose(t.param("w", (64, 256))))], params={"w": data})
    known: quantized_graph.Known = {}
    first, _ = quantized_graph.quantized(graph, "int4", known=known)
    count = len(calls)  # for the error
    second, _ = quantized_graph.quantized(graph, "int4", known=known)
    assert len(calls) == count and second.params == first.params
    codes, scale = load_data(first.params["w.q"]), load_data(first.params["w.scale"])
    again = load_data(second.params["w.scale"])
    assert len(calls) == count + 1 and np.shares_memory(load_data(second.params["w.q"]), codes)
    again[...] = 0
    np.testing.assert_array_equal(load_data(second.params["w.scale"]), scale)
    want = real(data, "int4", "float32")
    np.testing.assert_array_equal(codes, want["q"])
    np.testing.assert_array_equal(scale, want["scale"])
    codes = None  # nobody uses the codes any more
    np.testing.assert_array_equal(load_data(pickle.loads(pickle.dumps(first.params["w.q"]))), want["q"])
    np.testing.assert_array_equal(load_data(second.params["w.q"]), want["q"])


def test_codes_are_kept_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within `codes_kept` a weight whose codes nobody uses between two loads is encoded once; behind it nothing
    stays."""
    calls: list[Any] = []
    real = quantized_graph.encoded
    graph, _ = quantized(model(), "int4")
    monkeypatch.setattr(quantized_graph, "encoded", lambda *a: calls.append(a[-1]) or real(*a))
    with quantized_graph.codes_kept(graph.params):
        for name in ("up.scale", "up.q", "up.q"):
            load_data(graph.params[name])
        assert calls == [("q", "scale")]
    load_data(graph.params["up.q"])
    assert calls == [("q", "scale")] * 2


@pytest.mark.parametrize("form", ["int8", "int4", "fp8", "mxfp4"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=ON_GPU)])
def test_the_encoder_of_a_device_gives_the_bits_of_the_host(
    form: str, dtype: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """For small, huge and subnormal numbers, ties, zeros and several blocks of rows, in both orientations."""
    monkeypatch.setattr(quantization, "ENCODED_ON_DEVICE", 1000)
    kind = dtypes.numpy_dtype(dtype)
    for shape in ((33, 256), (5, 96), (3, 2080), (1, 32)):
        for factor in (1.0, 1e-3, 1e-6, 1e-39, 3e4):
            with np.errstate(over="ignore"):
                weight = (RNG.standard_normal(shape) * factor).clip(-6e4, 6e4).astype(kind)
            weight[0] = 0
            weight[-1, :32] = np.resize(np.array([0.25, -6, 6, 5, -0.75, 2.5]) * min(factor, 1e4), 32)
            want = quantization.encoded(weight, form, dtype)
            for rows, given in ((True, weight), (False, np.ascontiguousarray(weight.T))):
                found = quantization.encoded_on(given, form, dtype, rows, device)
                for name, part in want.items():
                    there = array_of(found[name])
                    assert there.shape == part.shape and there.dtype == part.dtype
                    np.testing.assert_array_equal(there.view(np.uint8), part.view(np.uint8))
    with pytest.raises(UsageError, match="not finite"):
        quantization.encoded_on(np.full((2, 32), np.inf, np.float32), form, dtype, True, device)


@pytest.mark.parametrize("form", ["int8", "int4", "fp8", "mxfp4"])
def test_codes_that_are_kept_are_the_codes(form: str) -> None:
    """Read again while somebody has them, of weights of one block of rows."""
    graph, _ = quantized(model(), form)
    first = load_data(graph.params["up.q"])
    again = load_data(graph.params["up.q"])
    assert again.dtype == first.dtype and np.shares_memory(again, first)
    np.testing.assert_array_equal(again, first)


@pytest.mark.parametrize("form", ["int8", "int4", "fp8", "mxfp4"])
def test_a_program_in_this_process_computes_with_the_weights_of_the_saved_one(form: str, tmp_path: Path) -> None:
    w = RNG.standard_normal((64, 96)).astype(np.float32)
    y = t.matmul(t.input("x", (8, 64)), t.param("w", (64, 96)))
    program = tg.optimize(y, params={"w": w}, quantize=form, backend="numpy", budget=1)
    x = RNG.standard_normal((8, 64)).astype(np.float32)
    found, want = program(x), x.astype(np.float64) @ w
    assert np.linalg.norm(found - want) < 0.2 * np.linalg.norm(want)
    program.save(tmp_path / "p")
    np.testing.assert_array_equal(tg.load_program(tmp_path / "p")(x), found)


def test_a_device_encodes_a_weight_once_for_all_who_read_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs, references and the digest share its codes; the host copies them. Codes of the host are uploaded."""
    for module in (weights_on_device, upload):
        monkeypatch.setattr(module, "GPU_KIND", "cpu")
    calls: list[str] = []
    host, there = quantized_graph.encoded, quantized_graph.encoded_on
    monkeypatch.setattr(quantized_graph, "encoded", lambda *a: calls.append("host") or host(*a))
    monkeypatch.setattr(quantized_graph, "encoded_on", lambda *a: calls.append("device") or there(*a))
    graph, _ = quantized(model(), "int4")
    calls.clear()
    codes, scale = t.param("up.q", *_type(graph, "up.q")), t.param("up.scale", *_type(graph, "up.scale"))
    with quantized_graph.codes_kept(graph.params):
        found = [weights_on_device.computed_weight(x, graph.params, "cpu") for x in (scale, codes, codes)]
        assert calls == ["device"] and found[1] is found[2]
        assert upload.uploaded(graph.params["up.q"], "cpu") is found[1]
        np.testing.assert_array_equal(load_data(graph.params["up.q"]), array_of(found[1]))
        np.testing.assert_array_equal(upload.downloaded(graph.params["up.scale"], "cpu"), array_of(found[0]))
        turned = weights_on_device.computed_weight(t.transpose(codes), graph.params, "cpu")
        np.testing.assert_array_equal(array_of(turned), array_of(found[1]).T)
        assert calls == ["device"]
    del found, turned
    kept = load_data(graph.params["up.q"])
    assert calls == ["device", "host"]
    np.testing.assert_array_equal(array_of(upload.uploaded(graph.params["up.q"], "cpu")), kept)
    assert calls == ["device", "host"]
    assert upload.copied_bytes([graph.params["up.q"], graph.params["up.scale"]]) == model().params["up"].nbytes


def _type(graph: Graph, name: str) -> tuple[tuple[int, ...], str]:
    data = graph.params[name]
    return tuple(data.shape), dtypes.name_of(data.dtype)
