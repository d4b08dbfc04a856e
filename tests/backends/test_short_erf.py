"""GELU as short as results of 16 bits need: how close it is, what it does at the ends, and where it is recognised."""

from __future__ import annotations

import math

import numpy as np
import pytest

import tensor_graphs.egraph.builders.builders as t
from tensor_graphs.backends.ir.kernel import Buffer
from tensor_graphs.backends.ir.short_erf import COARSE, FINE, ShortErf, gelu_of
from tensor_graphs.backends.lowering.lower import kernel_of
from tensor_graphs.egraph.composites import composite_ops as c
from tensor_graphs.egraph.ir.tensor import Tensor


@pytest.mark.parametrize("short", [FINE, COARSE], ids=["fine", "coarse"])
def test_the_short_gelu_is_as_close_as_the_error_function(short: ShortErf) -> None:
    f, x = np.float32, np.linspace(-8, 8, 100_001).astype(np.float32)
    u = np.minimum(x * f(0.5 * short.scale) * x - f(1), f(1))
    below = np.clip(x * eval(short.horner("u", 0.5 * math.sqrt(0.5)), {"u": u}) + f(0.5), 0, 1)
    want = np.array([0.5 * (1 + math.erf(v * math.sqrt(0.5))) for v in x.astype(float)])
    assert np.max(np.abs(below - want)) < short.error / 2 + 1e-6


X = t.input("x", (4, 8))
HALF = t.full((4, 8), 0.5, dtype="float32")


@pytest.mark.parametrize(
    ("root", "found"),
    [(c.gelu(X), True), (X * (HALF * (t.erf(X * math.sqrt(0.5)) + 1.0)), True), ((1.0 + t.erf(X / math.sqrt(2))) * X * 0.5, True),
     (X * 0.25 * (t.erf(X * math.sqrt(0.5)) + 1.0), False), (X * 0.5 * (t.erf(X) + 1.0), False), (X * 0.5 * (t.erf(X * math.sqrt(0.5)) + 2.0), False),
     (t.exp(X) * 0.5 * (t.erf(X * math.sqrt(0.5)) + 1.0), False)],
)  # fmt: skip
def test_gelu_is_recognised_in_any_order(root: Tensor, found: bool) -> None:
    kind = Buffer("float32", (4, 8), (8, 1))
    kernel = kernel_of([root], {X: "x"}, {"x": kind, "out": kind})
    (store,) = kernel.stores
    assert (gelu_of(store.value) is not None) == found
