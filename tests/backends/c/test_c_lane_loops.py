"""Loops in explicit vectors: results, tails, values that are computed once for all rows, functions bit by bit."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.backends.c import helpers as c_helpers
from tensor_graphs.backends.c.emit import kernel as c_source
from tensor_graphs.backends.c.emit.nest import ROW
from tensor_graphs.backends.c.emitter import EMITTER, EXPONENTIAL, ROWS_KEPT, NestSchedule
from tensor_graphs.backends.program.helpers.cpu_helpers import library_text
from tensor_graphs.backends.registry import backend
from tensor_graphs.egraph.ir.tensor import Tensor
from tensor_graphs.egraph.ops.ops import OPS

from .. import kernel_interpreter
from ..test_kernel_ir import kernel as plain_kernel

pytestmark = pytest.mark.skipif(bool(backend("c").unavailable()), reason="no C compiler")
SIZES = (1, 17, 64, 1100)
SPECIAL = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, 88.6, -88.9, -103.5, -104.5, 1e-30, 0.624, -0.626], np.float32)


def library(functions: dict[str, str]) -> Any:
    return c_helpers.c_library(library_text(functions).split('r"""')[1].split('"""')[0])


def terms(width: int) -> dict[str, Tensor]:
    x, y, g = tg.input("x", (5, width)), tg.input("y", (5, width)), tg.input("g", (1, width))
    return {
        "gated": tg.sigmoid(x) * tg.tanh(y), "chosen": tg.where(tg.lt(x, y), tg.exp(x), tg.maximum(y, 0.5)),
        "rows": y * tg.sigmoid(g) + tg.tanh(g), "both": tg.exp(y) * tg.sigmoid(g), "softmax": tg.softmax(x),
        "prologue": tg.softmax(tg.tanh(x) * tg.sigmoid(y)) * x, "least": tg.min(tg.tanh(x) + y, -1, True),
        "total": tg.sum(tg.exp(x) * y, -1, True), "normed": tg.exp(y) / (tg.sum(tg.tanh(y), -1, True) + 70.0),
    }  # fmt: skip


def text_of(name: str, width: int) -> str:
    return c_source.emit(plain_kernel(terms(width)[name]), f"{name}_{width}")


@pytest.fixture(scope="module")
def compiled() -> Any:
    return library({f"{n}_{width}": text_of(n, width) for width in SIZES for n in terms(width)})


@pytest.mark.parametrize("name", list(terms(3)))
def test_values_of_all_sizes(compiled: Any, name: str) -> None:
    rng = np.random.default_rng(0)
    for width in SIZES:
        root = terms(width)[name]
        values = {n: rng.standard_normal((1 if n == "g" else 5, width)).astype(np.float32) for n in "xyg"}
        values["y"][0, : min(width, 12)] = SPECIAL[: min(width, 12)]
        kernel = plain_kernel(root)
        flat = {n: values[n].reshape(-1) for n in kernel.buffers if n != "out"}
        want = np.zeros(5 if root.shape[1] == 1 else 5 * width)
        kernel_interpreter.run(kernel, {**{n: v.astype(np.float64) for n, v in flat.items()}, "out": want})
        out = np.full(want.shape, 7.0, np.float32)
        addresses = [(out if n == "out" else flat[n]).ctypes.data for n in kernel.buffers]
        c_helpers.c_function(compiled, f"{name}_{width}")(*map(ctypes.c_void_p, addresses))
        with np.errstate(over="ignore"):
            np.testing.assert_allclose(out, want.astype(np.float32), rtol=1e-5, atol=1e-6)


def test_values_of_the_innermost_axis_are_computed_once() -> None:
    text = text_of("both", 61)
    fill, rows = text.split("for (long i0", 1)
    assert "tanh" not in text and "exp_f" in fill and "lanes_exp" in rows


def test_expensive_values_of_a_row_are_computed_once() -> None:
    x, y, g = tg.input("x", (5, 48)), tg.input("y", (5, 48)), tg.input("g", (48,))
    value = tg.tanh(x) * tg.sigmoid(y)
    centred = value - tg.mean(value, -1, True)
    for root in (tg.softmax(value) * x, tg.sum(centred * centred, -1, True) + centred, tg.layer_norm(value, g, g)):
        text = c_source.emit(plain_kernel(root), "kernel")
        assert text.count("lanes_tanh") == text.count("tanh_f") == 1


def test_values_that_a_later_pass_computes_again_are_priced() -> None:
    inputs = [tg.input("x", (2, width)) for width in (ROW, ROW + 1)]
    once, again = (NestSchedule().again(plain_kernel(tg.softmax(tg.tanh(x)))) for x in inputs)
    x = tg.tanh(tg.input("x", (64, 48)))
    columns = tg.sum(x, 0, True) * tg.sum(x * x, 0, True)
    assert NestSchedule().again(plain_kernel(columns)) == OPS["tanh"].flops * 64 * 48
    assert once == 0.0 and again == (OPS["tanh"].flops * 2 + OPS["sub"].flops + OPS["exp"].flops) * 2 * (ROW + 1)


def test_functions_are_those_of_scalars_bit_by_bit() -> None:
    functions = {
        f"{kind}_{name}": f"void {kind}_{name}(const float *x, float *y, long n)\n{{\n    for (long i = 0; i < n; i += {step}) {body}\n}}"
        for name in ("exp", "tanh")
        for kind, step, body in (
            ("each", 1, f"y[i] = {name}_f(x[i]);"),
            ("wide", 16, f"{{ const floats v = lanes_{name}(lanes_f32(x + i)); __builtin_memcpy(y + i, &v, 64); }}"),
        )
    }
    made = library(functions)
    x = np.arange(0, 1 << 32, 8191, np.uint64).astype(np.uint32).view(np.float32)
    x = np.concatenate([x, SPECIAL])[: (x.size + SPECIAL.size) // 16 * 16].copy()
    fused = "#define __FP_FAST_FMAF 1" in c_helpers.c_output(
        [*c_helpers.c_compiler(), *c_helpers.c_flags(), "-dM", "-E", "-x", "c", "/dev/null"]
    )
    for name in ("exp", "tanh"):
        got = {kind: np.empty_like(x) for kind in ("each", "wide")}
        for kind, y in got.items():
            c_helpers.c_function(made, f"{kind}_{name}")(
                ctypes.c_void_p(x.ctypes.data), ctypes.c_void_p(y.ctypes.data), ctypes.c_long(x.size)
            )
        np.testing.assert_allclose(got["wide"], got["each"], rtol=0 if fused else 3e-7, atol=0)


def test_only_kernels_with_exponentials_and_reduced_ones_have_other_versions() -> None:
    x = tg.input("x", (4, 8))
    plain = EMITTER.version
    assert EMITTER.version_of([tg.softmax(x)]) == plain + EXPONENTIAL + ROWS_KEPT
    assert EMITTER.version_of([tg.sum(tg.gelu(x) * x, -1)]) == plain + ROWS_KEPT
    assert EMITTER.version_of([tg.silu(x) * x]) == plain + EXPONENTIAL
    assert EMITTER.version_of([tg.exp(tg.sum(x * x, -1, True))]) == plain + EXPONENTIAL
    assert EMITTER.version_of([tg.gelu(x) + tg.relu(x) / tg.sum(x, -1, True)]) == plain


def test_sums_along_columns_of_short_lines_cost_each_operation() -> None:
    """A softmax over channels of joined images of 5 x 5 and more pixels, whose lines divide the result into fives."""
    images = [tg.reshape(tg.input(f"x{n}", (1, 8, n, n)), (1, 8, n * n)) for n in (10, 5)]
    short, long = (
        plain_kernel(tg.softmax(x, axis=1)) for x in (tg.concat(images, 2) + 1.0, tg.input("y", (1, 8, 125)))
    )
    assert min(a.size for a in short.axes) == 5 < min(a.size for a in long.axes if a.size > 1)
    assert NestSchedule().again(short) > 10 * 8 * 125 > NestSchedule().again(long)
