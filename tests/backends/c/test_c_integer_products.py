"""Products of matrices of bytes in C against integer and float64 references, and their way from an ONNX model into a
plan."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from tensor_graphs.backends.c.byte_values import byte_value_rows
from tensor_graphs.backends.c.integer_products import integer_product_rows
from tensor_graphs.backends.registry import backend
from tensor_graphs.backends.tuning.single_kernel import compiled
from tensor_graphs.egraph.evaluate.interpret import evaluate
from tensor_graphs.egraph.ops.ops import Type
from tensor_graphs.egraph.simplify.simplify import simplify
from tensor_graphs.egraph.view.match import Matcher
from tensor_graphs.egraph.view.view import view_of
from tensor_graphs.extract.model.kernel import Call, Operand, contiguous
from tensor_graphs.models.onnx.load import load_onnx

from .byte_calls import compare, drawn, result_dtype
from .onnx_nodes import OnnxNodes

pytestmark = pytest.mark.skipif(bool(backend("c").unavailable()), reason="no C compiler")
ROWS = {row.name: row for row in integer_product_rows()}


def turned(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of matrices that are stored transposed."""
    *outer, rows, columns = shape
    strides = contiguous((*outer, columns, rows))
    return (*strides[:-2], strides[-1], strides[-2])


def call_of(
    name: str, x: tuple[int, ...], n: int, x_kind: str = "uint8", w_kind: str = "int8", kind: str = "uint8", per_column: bool = True,
    x_strides: tuple[int, ...] | None = None, w_turned: bool = False,
) -> Call:  # fmt: skip
    """A call on row-major operands, but for x with these strides, and w stored transposed."""
    plain = lambda shape, dtype: Operand(Type(shape, dtype), contiguous(shape))
    rank, k = len(x), x[-1]
    w = (*x[:-2], k, n) if "matmuls" in name else (n, k) if "turned" in name else (k, n)
    out, one, w_one = (*x[:-1], n), (1,) * rank, (1,) * len(w)
    columns = w_one if not per_column else (n, 1) if "turned" in name else (*w_one[:-1], n)
    factors = ((*one[:-1], n) if per_column else one) if "codes" in name else columns
    factors = factors[-1:] * per_column if "dynamic" in name else factors
    bias = (n,) if "linear" in name else (*one[:-1], n)
    operands = {
        "x": Operand(Type(x, x_kind), x_strides or contiguous(x)), "w": Operand(Type(w, w_kind), turned(w) if w_turned else contiguous(w)),
        "z": plain(one, x_kind), "y": plain(columns, w_kind), "m": plain(factors, "float32"),
        "b": plain(bias, "int32" if "integer_bias" in name else "float32"), "r": plain(out, kind),
        **{o: plain(one[: per_column] if o == "a" and "dynamic" in name else one, "float32") for o in "aspju"}, **{o: plain(one, kind) for o in "oqv"},
    }  # fmt: skip
    return Call(
        {o: operands[o] for o in ROWS[name].operands},
        plain(out, result_dtype(name, kind)),
        {"e": columns, "d": w_kind, "sizes": (*one[:-1], n), **({"axes": (1, 0)} if "turned" in name else {})},
    )


def terms(call: Call) -> int:
    """Terms of each sum of a product."""
    return int(call.operands["x"].type.shape[-1])


def check(calls: Iterable[tuple[str, Call]]) -> None:
    compare((ROWS[name], call, terms(call), 0) for name, call in calls)


def usual_call(name: str) -> Call:
    """A call that the kernel accepts."""
    return call_of(name, (2, 7, 20), 52)


#: One kernel of each kind of results with each pattern of scaling, and all patterns of sums of x.
CHOSEN = [
    n
    for n in ROWS
    if n.endswith(
        ("linear", "_bias", "codes_relu", "_dynamic", "_left", "matmul_quantized", "matmul", "zeros", "matmuls")
    )
]


def test_every_epilogue() -> None:
    check((name, usual_call(name)) for name in CHOSEN)


@pytest.mark.parametrize(
    "name", ["c.integer_matmul_zeros", "c.integer_matmul", "c.integer_matmuls_zeros", "c.integer_matmuls"]
)
@pytest.mark.parametrize("x", [(1, 1, 5), (2, 3, 13, 64), (1, 70, 17)])
def test_signs_and_layouts(name: str, x: tuple[int, ...]) -> None:
    """Bytes with and without signs, sizes that fill no vector, and operands that are views."""
    apart = (*(4 * s for s in contiguous(x)[:-1]), 1)
    calls = []
    for n in (1, 33):
        for x_kind in ("uint8", "int8"):
            for w_kind in ("int8", "uint8") if "zeros" in name else ("int8",):
                calls.append(call_of(name, x, n, x_kind, w_kind, per_column=n > 16))
        calls.append(call_of(name, x, n, x_strides=apart, w_turned=True))
        calls.append(call_of(name, x, n, x_strides=turned(x)) if x[:-2] == (1,) * (len(x) - 2) else call_of(name, x, n))
    check((name, call) for call in calls)


def test_largest_sums() -> None:
    """255 times -128 in pairs: no 16-bit sum in between saturates."""
    call = call_of("c.integer_matmul", (3, 64), 32)
    operands = drawn(call, terms(call))
    operands["x"][...], operands["w"][...], operands["z"][...] = 255, -128, 0
    got = compiled(ROWS["c.integer_matmul"], call)(operands)()[0]
    assert (got == 64 * 255 * -128).all()


# ---------------------------------------------------------------- models
def layers(path: Path, operators: bool) -> Path:
    """A quantized model of rows: a product with bias, GELU behind a reshape, a product; as QLinearMatMul, or as floats
    between QuantizeLinear and DequantizeLinear, whose bias has a scale of shape [1] and a scalar zero point."""
    made, rng = OnnxNodes(), np.random.default_rng(3)
    constant, add, point = made.constant, made.add, made.point

    def product(name: str, x: str, given: list[str], found: list[str], shape: tuple[int, int]) -> str:
        w = constant(f"{name}_w", rng.integers(-63, 64, shape).astype(np.int8))  # ONNX Runtime saturates others (AVX2)
        scales = rng.uniform(0.5, 1.0, shape[1]).astype(np.float32) / np.float32(60 * shape[0] ** 0.5)
        by = [constant(f"{name}_ws", scales), constant(f"{name}_wz", np.zeros(shape[1], np.int8))]
        if operators:
            return add("QLinearMatMul", [x, *given, w, *by, *found], f"{name}_q")
        given_x = add("DequantizeLinear", [x, *given], f"{name}_x")
        y = add("MatMul", [given_x, add("DequantizeLinear", [w, *by], f"{name}_wf", axis=1)], f"{name}_y")
        b = [
            constant(f"{name}_b", rng.integers(-900, 900, shape[1]).astype(np.int32)),
            constant(f"{name}_bs", np.float32([1e-3])),
        ]
        return add("QuantizeLinear", [add("Add", [y, add("DequantizeLinear", [*b, constant(f"{name}_bz", np.int32(0))], f"{name}_bf")], f"{name}_s"), *found], f"{name}_q")  # fmt: skip

    p = [point(n, s, z) for n, s, z in (("x", 0.03, 120), ("a", 0.05, 100), ("g", 0.04, 10), ("d", 0.03, 127))]
    a = product("one", add("QuantizeLinear", ["x", *p[0]], "x_q"), p[0], p[1], (20, 64))
    shape = constant("shape", np.array([2, 1, 9, 64]))
    turned = add("Reshape", [add("DequantizeLinear", [a, *p[1]], "a_f"), shape], "a_r")
    again = add("DequantizeLinear", [add("QuantizeLinear", [turned, *p[1]], "r_q"), *p[1]], "r_f")
    g = add("QuantizeLinear", [add("Gelu", [again], "g_y"), *p[2]], "g_q")
    add("DequantizeLinear", [product("two", g, p[2], p[3], (64, 20)), *p[3]], "y")
    return made.save(path, ([2, 9, 20], [2, 1, 9, 20]), opset=20)


@pytest.mark.parametrize("operators", [False, True], ids=["QDQ", "QLinearMatMul"])
def test_layers_stay_in_bytes(operators: bool, tmp_path: Path) -> None:
    """Products read and write bytes, GELU is a table, nothing is rounded around a reshape, and the values are ONNX
    Runtime's."""
    runtime = pytest.importorskip("onnxruntime")
    path = layers(tmp_path / "layers.onnx", operators)
    graph = load_onnx(path)
    view = view_of(simplify(graph))
    assert view.op.count("quantize") == 4, "one for each value"
    find = lambda row: list(Matcher(view).find(row.terms[0]))
    suffix = "_codes" if operators else "_bias"
    assert len(find(ROWS[f"c.integer_matmul_quantized{suffix}"])) == 2
    assert len(find(next(row for row in byte_value_rows() if row.name == "c.bytes_gelu"))) == 1
    x = np.random.default_rng(0).standard_normal((2, 9, 20)).astype(np.float32)
    plain = runtime.SessionOptions()  # with its optimizations it takes the bias's scale for that of the product
    plain.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    (want,) = runtime.InferenceSession(path, plain, providers=["CPUExecutionProvider"]).run(None, {"x": x})
    (got,) = evaluate(list(graph.roots), {"x": x}, params=graph.params, float64=True)
    assert len(np.unique(want)) > 25
    assert np.abs(got - want).max() < 0.0301, "more than one step of the result's scale"
    assert (np.abs(got - want) > 1e-5).mean() < 2e-2
