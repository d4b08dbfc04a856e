"""Products of matrices of bytes in C against integer and float64 references, and their way from an ONNX model into a
plan."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tensor_graphs.backends.c.integer_products import integer_product_rows
from tensor_graphs.backends.registry import backend
from tensor_graphs.backends.tuning.single_kernel import compiled, in_layout
from tensor_graphs.egraph.ops.ops import Type
from tensor_graphs.extract.model.kernel import Call, Operand, contiguous

from ..reference import expected
from .test_c_integer_convolutions import POINTS, SCALES, result_dtype

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


def drawn(call: Call, seed: int = 0) -> dict[str, Any]:
    """Random operands; results are spread over the range of bytes."""
    rng, found = np.random.default_rng(seed), {}
    spread = 75.0**2 * np.sqrt(call.operands["x"].type.shape[-1])
    for name, o in call.operands.items():
        dtype, shape = o.type.dtype, o.type.shape
        if name in SCALES:
            values = rng.uniform(0.5, 1.5, shape) * (40.0 / spread if name == "m" else 1.0)
        elif dtype == "float32":
            values = 9.0 * rng.standard_normal(shape)
        elif dtype == "int32":
            values = rng.integers(-9000, 9000, shape)
        else:
            limits = np.iinfo(dtype)
            values = rng.integers(limits.min, limits.max + 1, shape)
            values = values // 8 + (limits.max + limits.min) // 2 if name in POINTS else values
        found[name] = in_layout(np.asarray(values).astype(dtype), o)
    return found


def check(name: str, call: Call, seed: int = 0) -> None:
    """Sums equal the reference; floats by rounding; bytes, but for few that are next to a half."""
    row = ROWS[name]
    assert row.applies is not None and row.applies(call), name
    operands = drawn(call, seed)
    got, want = compiled(row, call)(operands)()[0], expected(row, call, operands)
    if got.dtype == np.float32:
        np.testing.assert_allclose(got, want, rtol=2e-6, atol=2e-5)
    elif got.dtype == np.int32:
        np.testing.assert_array_equal(got, want)
    else:
        off = np.abs(got.astype(int) - want.astype(int))
        assert off.max() <= 1 and (off > 0).mean() <= 2e-3, (name, off.max(), (off > 0).mean())
        assert np.ptp(want.astype(int)) > 15, "a result that shows little"


@pytest.mark.parametrize("name", list(ROWS))
def test_every_epilogue(name: str) -> None:
    check(name, call_of(name, (2, 7, 20), 52))


@pytest.mark.parametrize(
    "name", ["c.integer_matmul_zeros", "c.integer_matmul", "c.integer_matmuls_zeros", "c.integer_matmuls"]
)
@pytest.mark.parametrize("x", [(1, 1, 5), (2, 3, 13, 64), (1, 70, 17), (2, 1, 130)])
def test_signs_and_layouts(name: str, x: tuple[int, ...]) -> None:
    """Bytes with and without signs, sizes that fill no vector, and operands that are views."""
    apart = (*(4 * s for s in contiguous(x)[:-1]), 1)
    for n in (1, 16, 33, 130):
        for x_kind in ("uint8", "int8"):
            for w_kind in ("int8", "uint8") if "zeros" in name else ("int8",):
                check(name, call_of(name, x, n, x_kind, w_kind, per_column=n > 16))
        check(name, call_of(name, x, n, x_strides=apart, w_turned=True))
        check(name, call_of(name, x, n, x_strides=turned(x)) if x[:-2] == (1,) * (len(x) - 2) else call_of(name, x, n))


def test_largest_sums() -> None:
    """255 times -128 in pairs: no 16-bit sum in between saturates."""
    call = call_of("c.integer_matmul", (3, 64), 32)
    operands = drawn(call)
    operands["x"][...], operands["w"][...], operands["z"][...] = 255, -128, 0
    got = compiled(ROWS["c.integer_matmul"], call)(operands)()[0]
    assert (got == 64 * 255 * -128).all()
