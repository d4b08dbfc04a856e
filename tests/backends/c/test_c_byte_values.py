"""Kernels on values of bytes in C against the interpreter."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from tensor_graphs.backends.c.byte_values import byte_value_rows
from tensor_graphs.backends.registry import backend
from tensor_graphs.backends.tuning.single_kernel import compiled, in_layout
from tensor_graphs.egraph.builders import builders as t
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.ops.ops import Type
from tensor_graphs.egraph.simplify.simplify import simplify
from tensor_graphs.egraph.view.match import Matcher
from tensor_graphs.egraph.view.view import view_of
from tensor_graphs.extract.model.kernel import Call, Operand, contiguous
from tensor_graphs.models.onnx.quantize import dynamic_quantize

from ..reference import expected
from ..together import library_results
from .test_c_convolutions import last

pytestmark = pytest.mark.skipif(bool(backend("c").unavailable()), reason="no C compiler")
RANGE = "c.bytes_range"
ROWS = {row.name: row for row in byte_value_rows() if row.name != RANGE}
INEXACT = ("softmax", "layer_norm", "gelu", "silu", "sigmoid", "tanh", "hard_swish")  # elementary functions, sums


def call_of(name: str, shape: tuple[int, ...], kind: str = "uint8", images: bool = False) -> Call:
    """A call on row-major values, or on channels-last images."""
    row, one = ROWS[name], (1,) * len(shape)
    strides = last(shape) if images else contiguous(shape)
    line = (
        (shape[-1],)
        if "norm" in name
        else tuple(d if i == (1 if images else len(shape) - 1) else 1 for i, d in enumerate(shape))
    )
    floats = "x" if name in ("c.bytes_quantize", "c.bytes_quantize_to_last", "c.bytes_layer_norm_out") else ""
    plain = lambda size, dtype: Operand(Type(size, dtype), contiguous(size))
    made = {
        **{n: Operand(Type(shape, "float32" if n in floats else kind), strides) for n in "xr"},
        **{n: plain(one, "float32") for n in "ausm"}, **{n: plain(one, kind) for n in "zvo"},
        **{n: plain(line, "float32") for n in "bgh"},
    }  # fmt: skip
    out = "float32" if name in ("c.bytes_dequantize", "c.bytes_layer_norm_in") else kind
    written = last(shape) if images or "to_last" in name else contiguous(shape)
    attrs = {"lo": -1.5, "hi": 2.25, "eps": 1e-5, "axis": len(shape) - 1}
    return Call({n: made[n] for n in row.operands}, Operand(Type(shape, out), written), attrs)


def drawn(call: Call) -> dict[str, Any]:
    """Random operands in the call's layouts, such that results are spread over the range of bytes."""
    rng, given = np.random.default_rng(0), {}
    for n, o in call.operands.items():
        if n in "ausm":
            values = np.full(o.type.shape, {"a": 0.031, "u": 0.017, "s": 0.02, "m": 0.7}[n])
        elif o.type.dtype == "float32":
            values = 2.0 * rng.standard_normal(o.type.shape)
        else:
            limits = np.iinfo(o.type.dtype)
            values = rng.integers(limits.min, limits.max + 1, o.type.shape)
            values = values // 8 + (limits.max + limits.min) // 2 if n in "zvo" else values
        given[n] = in_layout(np.asarray(values).astype(o.type.dtype), o)
    return given


def check(calls: Iterable[tuple[str, Call]]) -> None:
    """Results of kernels, which are compiled together, equal the interpreter's in float32; bytes of inexact functions
    may be neighbours at a half."""
    cases = [(ROWS[name], call, drawn(call)) for name, call in calls]
    for (row, call, given), got, of in library_results(cases):
        want = expected(row, call, given, float64=False)
        assert len(np.unique(want)) > 8 or "softmax" in row.name, f"a result that shows little: {of}"
        if got.dtype == np.float32:
            np.testing.assert_allclose(got, want, rtol=2e-6, atol=4e-6, err_msg=of)
            continue
        off = np.abs(got.astype(int) - want.astype(int))
        loose = any(part in row.name for part in INEXACT)
        assert off.max() <= loose and off.mean() <= 2e-3 * loose, (of, off.max(), off.mean())


@pytest.mark.parametrize("kind", ["uint8", "int8"])
def test_every_kernel(kind: str) -> None:
    check((name, call_of(name, (3, 70, 31), kind)) for name in ROWS)


def test_images() -> None:
    names = [n for n in ROWS if "softmax" not in n and "norm" not in n and "to_last" not in n]
    check((name, call_of(name, (2, 35, 5, 7), images=True)) for name in names)


def test_images_become_channels_last() -> None:
    name = "c.bytes_quantize_to_last"
    check((name, call_of(name, shape)) for shape in ((2, 3, 9, 31), (1, 70, 65), (1, 32, 8, 8)))


def test_ties_round_to_even_and_results_saturate() -> None:
    call = call_of("c.bytes_quantize", (1, 1, 6), "int8")
    x = np.array([[[0.5, 1.5, -2.5, 1e30, -1e30, -0.5]]], np.float32)
    given = {"x": x, "s": np.ones((1, 1, 1), np.float32), "o": np.full((1, 1, 1), -3, np.int8)}
    got = compiled(ROWS["c.bytes_quantize"], call)(given)()[0]
    assert got.tolist() == [[[-3, -1, -5, 127, -128, -3]]]


@pytest.mark.parametrize("low, high", [(-3.0, 2.0), (0.5, 2.0), (-2.0, -1.0), (0.0, 0.0)])
def test_scale_and_zero_point_of_a_range(low: float, high: float) -> None:
    x = np.random.default_rng(0).uniform(low, high, (3, 70)).astype(np.float32)
    row = next(row for row in byte_value_rows() if row.name == RANGE)
    one = [Operand(Type((1, 1), kind), (1, 1)) for kind in ("float32", "uint8")]
    call = Call({"x": Operand(Type(x.shape, "float32"), (70, 1))}, one[0], {"k": (0, 1)}, more=(one[1],))
    assert row.applies is not None and row.applies(call)
    found = compiled(row, call)({"x": x})()
    for i in range(2):
        np.testing.assert_array_equal(found[i], expected(row, call, {"x": x}, i, float64=False))
    x[1, 3] = np.nan
    assert np.isnan(compiled(row, call)({"x": x})()[0]).all()


def test_dynamic_quantization_is_found_in_models() -> None:
    """The pattern is what the importer writes."""
    codes, scale, zero = dynamic_quantize(t.input("x", (4, 6)))
    view = view_of(simplify(Graph.of((codes, scale, zero))))
    row = next(row for row in byte_value_rows() if row.name == RANGE)
    assert list(Matcher(view).find(row.terms[0])) and list(Matcher(view).find(row.terms[1]))
