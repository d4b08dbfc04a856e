"""The spelling of every elementwise op of floats in Triton, run by its interpreter, and in CUDA C++, compiled for the
host."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensor_graphs.egraph.builders.builders as t
from tensor_graphs.backends.generate.call_code import launches
from tensor_graphs.backends.generate.kernel_text import kernel_text, module_of
from tensor_graphs.egraph.evaluate.interpret import evaluate
from tensor_graphs.egraph.ir.tensor import make
from tensor_graphs.egraph.ops.ops import OPS, Type
from tensor_graphs.extract.model.kernel import Call, Operand, contiguous

from .reference import ROUNDED

torch = pytest.importorskip("torch")
FUNCTIONS = [op.name for op in OPS.values() if op.law == "pointwise" and op.kind == "pointwise" and op.arity == 1]
TIES = (0.5, -0.5, 1.5, -1.5, 2.5, -2.5, 3.5, 0.0, 1e-10, -1e-10, 8388607.5, 16777218.0, np.inf, -np.inf, np.nan)


def _call(template: Any, shape: tuple[int, ...], dtype: str) -> Call:
    place = Operand(Type(shape, dtype), contiguous(shape))
    call = Call({"x": place}, place, {})
    return replace(call, schedule=next(iter(template.space(call))))


def _values(op: str, odd: bool) -> np.ndarray:
    """Values from an op's domain; `odd`: with infinities, NaN and halves."""
    line = np.linspace(0.02, 4.0, 40)
    line = line if OPS[op].domain == "positive" else np.concatenate([line, -line, [30.0]])
    return np.concatenate([line, TIES]) if odd else line


@pytest.mark.parametrize(
    "op, dtype", [(op, dtype) for op in FUNCTIONS for dtype in ("float32", "float64")[: 1 if op in ROUNDED else 2]]
)
def test_triton(op: str, dtype: str) -> None:
    pytest.importorskip("triton")
    from tensor_graphs.backends.triton.backend import generated

    x = _values(op, op in ("atan", "round")).astype(dtype)
    template = generated(make(op, (t.input("x", x.shape, dtype),)))
    call = _call(template, x.shape, dtype)
    out = torch.full(x.shape, float("nan"), dtype=getattr(torch, dtype))
    scratch = torch.zeros(template.scratch(call), dtype=torch.uint8)
    with np.errstate(all="ignore"):
        module_of(kernel_text(template, call)).run(torch.from_numpy(x), out, scratch)
        want = evaluate([template.root], {"x": x}, float64=op not in ROUNDED)[0]
    tight = 1e-12 if dtype == "float64" and op == "atan" else 2e-6
    if op == "to_bfloat16":  # the interpreter truncates
        tight = 0.01
    np.testing.assert_allclose(out.numpy(), want, rtol=tight, atol=1e-7)


def test_cuda(tmp_path: Path) -> None:
    from tensor_graphs.backends.cuda.backend import generated

    from .cuda_host import compiled, source_of

    made = {}
    for op in FUNCTIONS:
        for dtype in ("float32", "float64")[: 1 if op in ROUNDED else 2]:
            x = _values(op, op in ("atan", "round")).astype(dtype)
            template = generated(make(op, (t.input("x", x.shape, dtype),)))
            (launch,) = launches(template, _call(template, x.shape, dtype))
            made[op, dtype] = (x, template.root, launch)
    kernels = compiled(source_of(launch for *_, launch in made.values()), tmp_path)
    for (op, dtype), (x, root, launch) in made.items():
        out = np.full_like(x, np.nan)
        kernels[launch.name]([{"x": x, "out": out}[a].ctypes.data for a in launch.args], launch.grid, launch.block)
        with np.errstate(all="ignore"):
            want = evaluate([root], {"x": x}, float64=op not in ROUNDED)[0]
        np.testing.assert_allclose(out, want, rtol=2e-6 if dtype == "float32" else 1e-12, atol=1e-7)


# ---------------------------------------------------------------- division of integers
SIGNS = np.array(
    [0, 1, 6, 7, 8, 13, -1, -6, -7, -8, -13, (1 << 31) - 1, -(1 << 31), (1 << 62) + 5, -(1 << 62) - 5], np.int64
)
DIVISORS = np.array([7, -7, 1, 2, -3, 1 << 40], np.int64)


def _quotients(op: str, dtype: str, whole: bool) -> tuple[Any, dict[str, np.ndarray]]:
    """All pairs of the numbers that a dtype holds, or all numbers by one constant (`whole`); root and operands."""
    limits = np.iinfo(dtype)
    x, y = ([v for v in values if limits.min <= v <= limits.max] for values in (SIGNS, DIVISORS))
    shape = (len(x), 1 if whole else len(y))
    given = {"x": np.repeat(np.array(x, dtype)[:, None], shape[1], 1)}
    by = t.full((1, 1), -7 if op == "mod" else 5, dtype) if whole else t.input("y", shape, dtype)
    if not whole:
        given["y"] = np.repeat(np.array(y, dtype)[None], shape[0], 0)
    return make(op, (t.input("x", shape, dtype), by)), given


CASES = [(op, dtype, whole) for op in ("floordiv", "mod") for dtype in ("int64", "int32") for whole in (False, True)]


@pytest.mark.parametrize(("op", "dtype", "whole"), CASES)
def test_integers_are_divided_as_numpy_does_in_triton(op: str, dtype: str, whole: bool) -> None:
    pytest.importorskip("triton")
    from tensor_graphs.backends.triton.backend import generated

    root, given = _quotients(op, dtype, whole)
    template = generated(root)
    places = {n: Operand(Type(v.shape, dtype), contiguous(v.shape)) for n, v in given.items()}
    call = Call(places, Operand(root.type, contiguous(root.shape)), {})
    call = replace(call, schedule=next(iter(template.space(call))))
    out = torch.zeros(tuple(root.shape), dtype=getattr(torch, dtype))
    scratch = torch.zeros(template.scratch(call), dtype=torch.uint8)
    with np.errstate(all="ignore"):  # lanes beyond the end divide by 0
        module_of(kernel_text(template, call)).run(
            *(torch.from_numpy(given[o]) for o in template.operands), out, scratch
        )
    np.testing.assert_array_equal(out.numpy(), evaluate([root], given)[0])


def test_integers_are_divided_as_numpy_does_in_cuda(tmp_path: Path) -> None:
    """Also by 0, which gives 0, and the smallest number by -1, which wraps."""
    from tensor_graphs.backends.cuda.backend import generated

    from .cuda_host import compiled, source_of

    made = []
    for op, dtype, whole in CASES:
        root, given = _quotients(op, dtype, whole)
        if not whole:
            given["x"][-2:] = np.iinfo(dtype).min
            given["y"][-2:] = [[0], [-1]]
        template = generated(root)
        places = {n: Operand(Type(v.shape, dtype), contiguous(v.shape)) for n, v in given.items()}
        call = Call(places, Operand(root.type, contiguous(root.shape)), {})
        (launch,) = launches(template, replace(call, schedule=next(iter(template.space(call)))))
        made.append((root, given, launch))
    kernels = compiled(source_of(launch for *_, launch in made), tmp_path)
    for root, given, launch in made:
        out = np.zeros(tuple(root.shape), root.dtype)
        kernels[launch.name]([{**given, "out": out}[a].ctypes.data for a in launch.args], launch.grid, launch.block)
        np.testing.assert_array_equal(out, evaluate([root], given)[0], err_msg=str(root))
