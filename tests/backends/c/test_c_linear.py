"""Products with constant matrices in C against float64: sizes, epilogues, long sums, use in programs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.backends.c.convolutions import SOURCE, conv_packed
from tensor_graphs.backends.c.linear_products import linear_rows
from tensor_graphs.backends.c.stand_ins import stand_ins
from tensor_graphs.backends.program.helpers.cpu_helpers import library_text
from tensor_graphs.backends.program.launch.emission import emit_for
from tensor_graphs.backends.registry import backend
from tensor_graphs.backends.tuning.single_kernel import in_layout, kernel_plan
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.ops.ops import Type
from tensor_graphs.extract.model.kernel import Call, Operand, contiguous

from ..reference import expected
from ..together import library_results

pytestmark = pytest.mark.skipif(bool(backend("c").unavailable()), reason="no C compiler")
ROWS = {row.name: row for row in linear_rows()}


def call_of(name: str, x: tuple[int, ...], n: int) -> Call:
    out = (*x[:-1], n)
    shapes = {"x": x, "w": (x[-1], n), "b": (n,), "r": out}
    operand = lambda shape: Operand(Type(shape, "float32"), contiguous(shape))
    attrs = {"s": (1,) * (len(x) - 1) + (n,)} if "bias_sum" in name else {}
    return Call({o: operand(shapes[o]) for o in ROWS[name].operands}, operand(out), attrs)


def check(calls: Iterable[tuple[str, Call]], limit: float = 5e-7) -> None:
    """Kernels, which are compiled together, accept these calls and agree with float64."""
    rng = np.random.default_rng(0)
    draw = lambda o: rng.standard_normal(o.type.shape).astype(np.float32)
    cases = [(ROWS[n], call, {o: in_layout(draw(v), v) for o, v in call.operands.items()}) for n, call in calls]
    for case, got, of in library_results(cases):
        want = expected(*case).astype(float)
        assert got.shape == want.shape, of
        assert np.linalg.norm(got.astype(float) - want) <= limit * np.linalg.norm(want), of


def test_every_epilogue() -> None:
    check((name, call_of(name, (2, 7, 33), 70)) for name in ROWS)


@pytest.mark.parametrize("name", ["c.tiled_linear", "c.tiled_linear_bias_residual_relu"])
def test_sizes(name: str) -> None:
    shapes = ((1, 1), (6, 5), (13, 300), (2, 3, 64), (1, 1024))
    check((name, call_of(name, x, n)) for x in shapes for n in (1, 16, 17, 64, 144, 200))


def test_only_the_c_functions_that_a_program_calls_are_compiled() -> None:
    """The others of the library are static or left out: the compiler takes no time for their code."""
    call = call_of("c.tiled_linear", (6, 5), 16)
    source = emit_for(kernel_plan(ROWS["c.tiled_linear"], call)).source
    exported = set(re.findall(r"^(?:__attribute__.*)?void (\w+)\(", source, re.MULTILINE))
    assert exported >= {"tiled_conv"} and not exported & {"tiled_winograd", "tiled_windows"}
    parts = library_text(SOURCE, {"tiled_windows"}, before={name: [*SOURCE][:at] for at, name in enumerate(SOURCE)})
    assert {"tiled_conv", "tiled_winograd"} <= set(re.findall(r"^static void (\w+)\(", parts, re.MULTILINE))
    assert set(re.findall(r'c_function\(kernels, "(\w+)"\)', source)) == {"tiled_conv"}


def test_the_kernel_that_stands_for_those_of_a_model_has_their_c_code() -> None:
    """Compiling it compiles theirs; models without products of weights have none."""
    x, w = tg.input("x", (6, 64)), tg.param("w", (32, 64))
    text = lambda row, call: emit_for(kernel_plan(row, call)).source.split('C_SOURCE = r"""')[1].split('"""')[0]
    ((found, call),) = stand_ins(Graph.of(tg.relu(x @ w.T)))
    for name in ("c.tiled_linear_bias_residual_relu", "c.tiled_linear_gelu"):
        assert text(ROWS[name], call_of(name, (40, 500), 144)) == text(found, call)
    assert stand_ins(Graph.of(tg.softmax(x @ tg.input("y", (64, 8))))) == [] == stand_ins(Graph.of(tg.relu(w + 1.0)))
    image = tg.conv(tg.input("i", (1, 32, 8, 8)), tg.param("k", (32, 32, 3, 3)), pads=(1, 1, 1, 1))
    names = [t.name for t, _ in stand_ins(Graph.of({"a": image, "b": tg.relu(x @ w.T)}))]
    assert names == ["c.tiled_conv", "c.winograd_conv"], "a direct convolution has the code of products"


def test_long_sums_round_little() -> None:
    check([("c.tiled_linear", call_of("c.tiled_linear", (8, 4096), 48))], limit=3e-7)


def test_what_they_cannot_compute_is_refused() -> None:
    row = ROWS["c.tiled_linear"]
    assert row.applies is not None
    assert not row.applies(call_of("c.tiled_linear", (0, 8), 16))
    operand = lambda *shape: Operand(Type(shape, "float32"), contiguous(shape))
    assert not row.applies(Call({"x": operand(2, 4, 8), "w": operand(2, 8, 8)}, operand(2, 4, 8), {}))
    double = lambda *shape: Operand(Type(shape, "float64"), contiguous(shape))
    assert not row.applies(Call({"x": double(4, 8), "w": double(8, 8)}, double(4, 8), {}))


def test_a_feed_forward_network_is_one_c_function() -> None:
    torch = pytest.importorskip("torch")
    nn = torch.nn
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(48, 96), nn.GELU(), nn.Linear(96, 48), nn.ReLU(), nn.Linear(48, 33))
    x = torch.randn(5, 48)
    module.eval().requires_grad_(False)
    program: Any = tg.optimize(module, (x,), backend="c", budget=5, measure=False, allow_caller=False)
    assert "tiled_conv(at[" in program.source
    np.testing.assert_allclose(program(x).numpy(), module(x).numpy(), rtol=1e-4, atol=1e-5)


def test_activations_of_large_values_and_nan() -> None:
    names = [f"c.tiled_linear{ending}" for ending in ("_silu", "_gelu_tanh", "_relu", "_hard_swish")]
    x = np.array([np.nan, 1e4, -1e4, 200.0, -200.0, 30.0, -30.0, 0.0, -1e-6], np.float32)[:, None]
    cases = [(ROWS[name], call_of(name, (9, 1), 19), {"x": x, "w": np.ones((1, 19), np.float32)}) for name in names]
    for case, got, of in library_results(cases):
        np.testing.assert_allclose(got, expected(*case), rtol=2e-6, atol=1e-30, err_msg=of)


def test_packed_weights_begin_at_a_cache_line() -> None:
    rng = np.random.default_rng(0)
    for channels in range(1, 40):
        packed = conv_packed(rng.standard_normal((channels, 3, 1, 1)).astype(np.float32), 1)
        assert packed.ctypes.data % 64 == 0 and packed.flags.c_contiguous
