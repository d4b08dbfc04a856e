"""Arithmetic that decides a whole number or a truth value in GPU kernels rounds once an operation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensor_graphs.egraph.builders.builders as t
from tensor_graphs.backends.c.emitter import CEmitter
from tensor_graphs.backends.cuda.backend import CudaEmitter
from tensor_graphs.backends.generate.call_code import launches
from tensor_graphs.backends.generate.template import template_of
from tensor_graphs.backends.lowering.ieee_decisions import ROUNDED
from tensor_graphs.backends.triton.backend import TritonEmitter
from tensor_graphs.egraph.ir.tensor import Tensor
from tensor_graphs.egraph.ops.ops import Type
from tensor_graphs.extract.model.kernel import Call, Operand, contiguous

from .cuda_host import compiled, source_of

pytest.importorskip("torch")
SHAPE = (4, 64)
X = t.input("x", SHAPE, "float32")
DECIDED: dict[str, tuple[Tensor, set[str]]] = {
    "sum of products": (t.floor(X * 0.1 + X * 0.3), {"exact_mul"}),
    "quotient": (t.floor(X / 49.0), {"exact_div"}),
    "root": (t.lt(X / t.sqrt(X * X), 1.0), {"exact_div", "exact_sqrt"}),
    "behind a sum": (t.le(3.0, t.sum(X / 7.0 + X * 0.5 * 0.1, 1)), {"exact_div", "exact_mul"}),
    "shared": (t.where(t.lt(X * 0.1 + 1.0, 2.0), X * 0.1 + 1.0, 0.0), {"exact_mul"}),
    "activation": (t.where(t.lt(0.0, X * 0.1 + 1.0), X * 0.1 + 1.0, 0.0), set()),
    "exponential": (t.floor(t.exp(X * 0.1 + 1.0)), set()),
    "none": (X * 0.1 + X / 49.0, set()),
}


def made(emitter: Any, root: Tensor) -> tuple[Any, Call]:
    template, place = template_of(emitter, root), Operand(Type(SHAPE, "float32"), contiguous(SHAPE))
    call = Call({"x": place}, Operand(root.type, contiguous(root.shape)), {})  # type: ignore[arg-type]
    return template, replace(call, schedule=next(iter(template.space(call))))


@pytest.mark.parametrize("name", DECIDED)
def test_what_decides_rounds_once(name: str) -> None:
    root, expected = DECIDED[name]
    for emitter in (TritonEmitter(), CudaEmitter()):
        template, call = made(emitter, root)
        ops = {e.op for e in template.kernel(call).exprs}
        assert {op for op in ops if op.startswith("exact_")} == expected
        assert template.version.endswith(ROUNDED) or not expected
    template, call = made(CEmitter(), root)  # C compilers are told not to contract
    assert not any(e.op.startswith("exact_") for e in template.kernel(call).exprs)


def test_the_texts_decide_as_numpy(tmp_path: Path) -> None:
    """Compiled for the host. (What NVRTC and Triton make of them: `fma.rn` with 0, `mul.rn`, `div.rn`, `sqrt.rn`.)"""
    x = np.arange(256, dtype=np.float32).reshape(SHAPE)
    launched = {}
    for name in ("sum of products", "quotient"):
        template, call = made(CudaEmitter(), DECIDED[name][0])
        (launched[name],) = launches(template, call)
    kernels = compiled(source_of(launched.values()), tmp_path)
    wanted = {"sum of products": np.floor(x * np.float32(0.1) + x * np.float32(0.3)), "quotient": np.floor(x / 49)}
    for name, launch in launched.items():
        assert "_rn(" in launch.source
        out = np.full_like(x, np.nan)
        kernels[launch.name]([{"x": x, "out": out}[a].ctypes.data for a in launch.args], launch.grid, launch.block)
        np.testing.assert_array_equal(out, wanted[name])


def test_numbers_keep_their_bits_in_float64() -> None:
    """Functions of some versions of Triton round numbers that are given as such to float32."""
    x, place = t.input("x", SHAPE, "float64"), Operand(Type(SHAPE, "float64"), contiguous(SHAPE))
    for root, number in ((t.floor(x * 0.1 + x), 0.1), (t.maximum(x, 0.3), 0.3)):
        template = template_of(TritonEmitter(), root)
        call = Call({"x": place}, place, {})
        (launch,) = launches(template, replace(call, schedule=next(iter(template.space(call)))))
        assert f"tl.full((), {number}, tl.float64)" in launch.source
