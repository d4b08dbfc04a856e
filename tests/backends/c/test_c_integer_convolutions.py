"""Convolutions of bytes in C against integer and float64 references, and their way from an ONNX model into a plan."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensor_graphs.backends.c.integer_convolutions import integer_convolution_rows
from tensor_graphs.backends.c.integer_pools import integer_pool_rows
from tensor_graphs.backends.registry import backend
from tensor_graphs.backends.tuning.single_kernel import compiled
from tensor_graphs.egraph.builders import builders as t
from tensor_graphs.egraph.composites.quantized_ops import integer_conv
from tensor_graphs.egraph.evaluate.interpret import evaluate
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.ops.ops import Type
from tensor_graphs.egraph.view.match import Matcher
from tensor_graphs.egraph.view.view import view_of
from tensor_graphs.extract.model.kernel import Call, Operand, contiguous
from tensor_graphs.models.onnx.load import load_onnx
from tensor_graphs.models.onnx.quantize import dynamic_quantize

from ..reference import expected
from .byte_calls import compare, drawn, result_dtype
from .onnx_nodes import OnnxNodes
from .test_c_convolutions import last

pytestmark = pytest.mark.skipif(bool(backend("c").unavailable()), reason="no C compiler")
ROWS = {row.name: row for row in (*integer_convolution_rows(), *integer_pool_rows())}
ONE = (1, 1, 1, 1)


def call_of(
    name: str, x: tuple[int, ...], k: int, window: tuple[int, int] = (3, 3), groups: int = 1, x_kind: str = "uint8",
    w_kind: str = "int8", kind: str = "uint8", per_channel: bool = True, **attrs: tuple[int, ...],
) -> Call:  # fmt: skip
    """A call with channels-last images."""
    geometry = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), **attrs}
    pads, steps, apart = geometry["pads"], geometry["strides"], geometry["dilations"]
    size = [(x[2 + i] + pads[i] + pads[2 + i] - (window[i] - 1) * apart[i] - 1) // steps[i] + 1 for i in range(2)]
    out, channels = (x[0], k, *size), (k, 1, 1, 1) if per_channel else ONE
    image = lambda shape, dtype: Operand(Type(shape, dtype), last(shape))
    plain = lambda shape, dtype: Operand(Type(shape, dtype), contiguous(shape))
    operands = {
        "x": image(x, x_kind), "w": plain((k, x[1] // groups, *window), w_kind), "z": plain(ONE, x_kind), "y": plain(channels, w_kind),
        "m": plain(((1, k, 1, 1) if "codes" in name else (k, 1, 1, 1)) if per_channel else ONE, "float32"), "b": plain((1, k, 1, 1), "int32" if "integer_bias" in name else "float32"),
        "r": image(out, kind), **{n: plain(ONE, "float32") for n in "aspju"}, **{n: plain(ONE, kind) for n in "oqv"},
    }  # fmt: skip
    more = {"groups": groups, "e": channels, "d": w_kind}
    more |= {"lo": -3.0, "hi": 20.5} if "clip" in name else {}
    written = image(out, result_dtype(name, kind))
    return Call({o: operands[o] for o in ROWS[name].operands}, written, {**geometry, **more})


def terms(call: Call) -> int:
    """Terms of each sum of a convolution; 0 for other calls."""
    return int(np.prod(call.operands["w"].type.shape[1:])) if "w" in call.operands else 0


def check(*calls: tuple[str, Call], seed: int = 0) -> None:
    compare((ROWS[name], call, terms(call), seed) for name, call in calls)


def usual_call(name: str, **more: Any) -> Call:
    """A call that the kernel accepts."""
    alone = "depthwise" in name
    return call_of(name, (2, 20, 7, 9), 20 if alone else 52, groups=20 if alone else 1, **more)


def test_every_epilogue() -> None:
    check(*((name, usual_call(name)) for name in ROWS if "integer" in name))


@pytest.mark.parametrize("name", ["c.integer_conv_quantized_bias_residual_relu", "c.integer_depthwise_quantized_bias"])
def test_bytes_with_signs_and_one_scale(name: str) -> None:
    ways: tuple[dict[str, Any], ...] = ({"kind": "int8", "per_channel": False}, {"x_kind": "int8", "kind": "int8"})
    check(*((name, usual_call(name, **way)) for way in ways))


@pytest.mark.parametrize("name", ["", "_scaled_bias", "_quantized_bias", "_quantized_bias_residual"])
def test_windows_of_one_pixel(name: str) -> None:
    """Pixels at equal distances: several tiles a call, and a last one that is not whole."""
    name, nothing = f"c.integer_conv{name}", (0, 0, 0, 0)
    for size in ((5, 7), (23, 17), (24, 16)):
        check(
            (name, call_of(name, (2, 24, *size), 70, (1, 1), pads=nothing)),
            (name, call_of(name, (1, 8, *size), 40, (1, 1), groups=2, pads=nothing)),
        )


@pytest.mark.parametrize("strides", [(1, 1), (2, 2)])
def test_many_channels_side_by_side(strides: tuple[int, int]) -> None:
    """Depthwise convolutions take 64 channels at a time, then 16, and the last few."""
    kinds = (("bias", "uint8", "uint8"), ("bias_clip", "uint8", "int8"), ("bias_relu", "int8", "int8"))
    name, x, more = "c.integer_depthwise_quantized_", (2, 150, 9, 14), {"strides": strides, "pads": (1, 2, 0, 1)}
    check(*(
        (name + end, call_of(name + end, x, 150, window, 150, x_kind, kind=kind, **more))
        for window in ((3, 3), (5, 5), (2, 3), (6, 5)) for end, x_kind, kind in kinds
    ))  # fmt: skip


@st.composite
def sums(draw: st.DrawFn) -> tuple[str, Call]:
    """Any window, stride, padding, dilation, group and sign."""
    small = lambda most, least=1: draw(st.integers(least, most))
    alone = draw(st.booleans())
    groups = small(21) if alone else small(3)
    x_kind, w_kind = (draw(st.sampled_from(("uint8", "int8"))) for _ in range(2))
    own = 1 if alone else small(9, 2)
    window, apart = (small(4), small(5)), (small(2), small(2) if alone or own % 4 == 0 else 1)
    name = "c.integer_depthwise_zeros" if alone else "c.integer_conv_zeros"
    call = call_of(
        name, (small(2), groups * own, 9 + small(3), 11 + small(9)), groups * (1 if alone else small(40)), window, groups, x_kind, w_kind,
        per_channel=draw(st.booleans()), strides=(small(3), small(3)), dilations=apart, pads=tuple(small(2, 0) for _ in range(4)),
    )  # fmt: skip
    return name, call


@settings(max_examples=8, deadline=None)
@given(calls=st.lists(sums(), min_size=5, max_size=5), seed=st.integers(1, 1000))
def test_sums_are_exact(calls: list[tuple[str, Call]], seed: int) -> None:
    check(*calls, seed=seed)


def test_largest_sums_wrap_around_like_int32() -> None:
    """Products of extreme bytes over many channels, and a bias that overflows."""
    call = call_of("c.integer_conv_scaled_codes_integer_bias", (1, 64, 3, 3), 17)
    operands = drawn(call, terms(call))
    operands["x"][...], operands["w"][...], operands["z"][...] = 255, -128, 0
    operands["b"][...] = -(2**31) + 5
    got = compiled(ROWS["c.integer_conv_scaled_codes_integer_bias"], call)(operands)()[0]
    total = np.int64(-(2**31) + 5) - 255 * 128 * 64 * 9
    assert got[0, 3, 1, 1] == pytest.approx(float(np.int32(total + 2**32)) * float(operands["m"][0, 3, 0, 0]), rel=1e-6)


@pytest.mark.parametrize("kind", ["uint8", "int8"])
@pytest.mark.parametrize("scale", [0.5, -0.5])
def test_max_pool_of_bytes(kind: str, scale: float) -> None:
    x, out = (2, 19, 7, 9), (2, 19, 4, 5)
    attrs = {"kernel": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1), "dilations": (1, 1)}
    image = lambda shape: Operand(Type(shape, kind), last(shape))
    call = Call(
        {"x": image(x), "s": Operand(Type(ONE, "float32"), ONE), "o": Operand(Type(ONE, kind), ONE)}, image(out), attrs
    )
    row, operands = ROWS["c.bytes_max_pool"], drawn(call, terms(call))
    operands["s"][...] = scale
    assert row.applies is not None and row.applies(call)
    want = expected(row, call, operands)
    np.testing.assert_array_equal(compiled(row, call)(operands)()[0], want)
    plain, only = ROWS[f"c.{kind}_max_pool"], replace(call, operands={"x": call.operands["x"]})
    assert plain.applies is not None and plain.applies(only)
    np.testing.assert_array_equal(compiled(plain, only)(operands)()[0], expected(plain, only, operands))


@pytest.mark.parametrize("kind", ["uint8", "int8"])
@pytest.mark.parametrize("channels", [3, 64, 150])
def test_means_of_bytes(kind: str, channels: int) -> None:
    x, out = (2, channels, 7, 9), (2, channels, 1, 1)
    point = Operand(Type(ONE, kind), ONE)
    operands = {"x": Operand(Type(x, kind), last(x)), "s": Operand(Type(ONE, "float32"), ONE), "z": point}
    check(("c.bytes_mean", Call(operands, Operand(Type(out, "float32"), contiguous(out)), {"axes": (2, 3)})))


def test_calls_that_kernels_refuse() -> None:
    name = "c.integer_conv_quantized"
    call, applies = usual_call(name), ROWS[name].applies
    assert applies is not None and applies(call)
    refused = {
        "w": Operand(Type((52, 20, 3, 3), "uint8"), contiguous((52, 20, 3, 3))),  # needs zero points
        "m": Operand(Type((1, 20, 3, 3), "float32"), contiguous((1, 20, 3, 3))),  # no factor of channels
        "s": Operand(Type((1, 52, 1, 1), "float32"), contiguous((1, 52, 1, 1))),  # one scale for each channel
        "x": Operand(Type((2, 20, 7, 9), "uint8"), contiguous((2, 20, 7, 9))),  # row-major
    }
    for operand, other in refused.items():
        assert not applies(replace(call, operands={**call.operands, operand: other})), operand
    one = replace(usual_call(name), output=Operand(Type((2, 52, 7, 18), "uint8"), last((2, 52, 7, 18))))
    assert not applies(one), "another shape than the convolution's"
    square = call_of(f"{name.replace('quantized', 'quantized_zeros')}", (1, 20, 5, 5), 20)
    applies = ROWS["c.integer_conv_quantized_zeros"].applies
    assert applies is not None and applies(square)
    for operand in ("m", "y"):  # scales and zero points of input channels
        kind = Type((1, 20, 1, 1), square.operands[operand].type.dtype)
        turned = {**square.operands, operand: Operand(kind, contiguous((1, 20, 1, 1)))}
        assert not applies(replace(square, operands=turned)), operand


# ---------------------------------------------------------------- models
def chain(path: Path, operators: bool) -> Path:
    """A quantized model: convolution with bias and ReLU, depthwise convolution, convolution added to the first one's
    result; as QLinearConv, or as floats between QuantizeLinear and DequantizeLinear."""
    made, rng = OnnxNodes(), np.random.default_rng(3)
    constant, add, point = made.constant, made.add, made.point

    def conv(name: str, x: str, given: list[str], found: list[str], groups: int, shape: tuple[int, ...]) -> str:
        w = constant(f"{name}_w", rng.integers(-63, 64, shape).astype(np.int8))  # ONNX Runtime saturates others (AVX2)
        scales = rng.uniform(0.5, 1.0, shape[0]).astype(np.float32) / np.float32(60 * np.prod(shape[1:]) ** 0.5)
        by = [constant(f"{name}_w_scale", scales), constant(f"{name}_w_zero", np.zeros(shape[0], np.int8))]
        b = constant(f"{name}_b", rng.integers(-900, 900, shape[0]).astype(np.int32))
        more = {"group": groups, "pads": [shape[2] // 2] * 4}
        if operators:
            return add("QLinearConv", [x, *given, w, *by, *found, b], f"{name}_q", **more)
        product = constant(
            f"{name}_b_scale", (scales * made.onnx.numpy_helper.to_array(made.known[given[0]])).astype(np.float32)
        )
        y = add("Conv", [add("DequantizeLinear", [x, *given], f"{name}_x"),
                         add("DequantizeLinear", [w, *by], f"{name}_wf", axis=0),
                         add("DequantizeLinear", [b, product], f"{name}_bf", axis=0)], f"{name}_y", **more)  # fmt: skip
        return add("QuantizeLinear", [add("Relu", [y], f"{name}_r") if name == "one" else y, *found], f"{name}_q")

    p = [
        point("x", 0.03, 120),
        point("a", 0.05, 0),
        point("b", 0.06, 130),
        point("c", 0.04, 128),
        point("d", 0.09, 127),
    ]
    x = add("QuantizeLinear", ["x", *p[0]], "x_q")
    a = conv("one", x, p[0], p[1], 1, (24, 8, 3, 3))
    b = conv("two", a, p[1], p[2], 24, (24, 1, 3, 3))
    c = conv("three", b, p[2], p[3], 1, (24, 24, 1, 1))
    total = add("Add", [add("DequantizeLinear", [c, *p[3]], "c_f"), add("DequantizeLinear", [a, *p[1]], "a_f")], "sum")
    add("DequantizeLinear", [add("QuantizeLinear", [total, *p[4]], "d_q"), *p[4]], "y")
    return made.save(path, ([1, 8, 10, 10], [1, 24, 10, 10]), opset=17)


@pytest.mark.parametrize("operators", [False, True], ids=["QDQ", "QLinearConv"])
def test_a_chain_stays_in_bytes(operators: bool, tmp_path: Path) -> None:
    """Each rounding of a convolution is one kernel from bytes to bytes, and the values are ONNX Runtime's."""
    runtime = pytest.importorskip("onnxruntime")
    import tensor_graphs as tg

    path = chain(tmp_path / "chain.onnx", operators)
    view = tg.saturate(path, backend="c", budget=20.0).view
    matcher = Matcher(view)
    rounded = {int(view.cls[n]) for n, op in enumerate(view.op) if op == "quantize"}
    made: dict[int, set[str]] = {}
    for name in ROWS:
        for cls, _ in matcher.find(ROWS[name].terms[0]):
            made.setdefault(cls, set()).add(name)
    bias = "_codes_integer_bias" if operators else "_bias"
    for part in (f"c.integer_depthwise_quantized{bias}", f"c.integer_conv_quantized{bias}_residual"):
        assert any(part in made.get(cls, ()) for cls in rounded), part
    first = f"c.integer_conv_quantized{bias}{'' if operators else '_relu'}"
    assert any(first in made.get(cls, ()) for cls in rounded)
    graph = load_onnx(path)
    x = np.random.default_rng(0).standard_normal((1, 8, 10, 10)).astype(np.float32)
    session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (want,), (got,) = (
        session.run(None, {"x": x}),
        evaluate(list(graph.roots), {"x": x}, params=graph.params, float64=True),
    )
    assert np.abs(got - want).max() < 0.0901, "more than one step of the result's scale"
    assert (np.abs(got - want) > 1e-5).mean() < 5e-3


def test_dynamic_quantization_matches() -> None:
    """ConvInteger of a value quantized at run time, scaled and with a bias."""
    x = t.input("x", (1, 8, 6, 6))
    codes, scale, zero = dynamic_quantize(x)
    w = t.param("w", (16, 8, 3, 3), "int8")
    geometry = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "groups": 1}
    sums = integer_conv(codes, w, t.reshape(zero, ONE), t.full(ONE, 0, "int8"), **geometry)
    y = t.cast(sums, "float32") * t.reshape(scale, ONE) + t.reshape(t.param("b", (16,)), (1, 16, 1, 1))
    found = list(Matcher(view_of(Graph.of(y))).find(ROWS["c.integer_conv_scaled_codes_bias"].terms[0]))
    assert len(found) == 1


def test_conv_integer_is_that_of_onnx_runtime(tmp_path: Path) -> None:
    onnx, runtime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    rng = np.random.default_rng(1)
    draw = lambda shape: rng.integers(0, 256, shape).astype(np.uint8)
    known = {"w": draw((6, 2, 3, 2)), "xz": draw(()), "wz": draw(())}
    node = onnx.helper.make_node(
        "ConvInteger", ["x", "w", "xz", "wz"], ["y"], group=2, pads=[1, 0, 1, 1], strides=[2, 1]
    )
    given = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.UINT8, [2, 4, 7, 6])
    made = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.INT32, None)
    graph = onnx.helper.make_graph(
        [node], "sums", [given], [made], [onnx.numpy_helper.from_array(v, n) for n, v in known.items()]
    )
    onnx.save(
        onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9),
        tmp_path / "sums.onnx",
    )
    x, found = draw((2, 4, 7, 6)), load_onnx(tmp_path / "sums.onnx")
    session = runtime.InferenceSession(tmp_path / "sums.onnx", providers=["CPUExecutionProvider"])
    assert {n.op for n in found.nodes()} >= {"integer_conv"}
    np.testing.assert_array_equal(
        evaluate(list(found.roots), {"x": x}, params=found.params)[0], session.run(None, {"x": x})[0]
    )
