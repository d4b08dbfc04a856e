"""Kernels in C: elementary functions over the whole range, fused bodies against the IR's specification, what is
declared to be missing, special values, memory safety, programs that run by themselves, machines without a compiler."""

from __future__ import annotations

import ctypes
import math
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensor_graphs as tg
import tensor_graphs.egraph.builders.builders as t
from tensor_graphs.backends.c import backend as c
from tensor_graphs.backends.c import helpers as c_helpers
from tensor_graphs.backends.c.backend import generated
from tensor_graphs.backends.c.emit import kernel as c_source
from tensor_graphs.backends.ir import c_math
from tensor_graphs.backends.ir import kernel as kir
from tensor_graphs.backends.ir.unfusable import Unfusable
from tensor_graphs.backends.lowering.lower import kernel_of
from tensor_graphs.backends.program.helpers.cpu_helpers import library_text
from tensor_graphs.backends.program.launch import direct_calls, emission
from tensor_graphs.backends.registry import backend, on_gpu, select
from tensor_graphs.backends.runtime import compile_clock
from tensor_graphs.backends.runtime.views import view_strides
from tensor_graphs.backends.tuning import cpu_worker
from tensor_graphs.backends.tuning.single_kernel import (
    in_layout,
    random_values,
    run_outputs,
    run_template,
)
from tensor_graphs.costdb.keys import device
from tensor_graphs.egraph.composites import composite_ops as composite
from tensor_graphs.egraph.evaluate.interpret import evaluate
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.ir.tensor import Tensor, make, topological
from tensor_graphs.egraph.ops.ops import OPS, Type
from tensor_graphs.egraph.ops.special_functions import erf
from tensor_graphs.egraph.patterns.pattern import PatternCall
from tensor_graphs.egraph.types import dtypes
from tensor_graphs.egraph.view.view import view_of
from tensor_graphs.errors import DeviceUnavailableError
from tensor_graphs.extract.candidates.candidates import candidate_hypergraph
from tensor_graphs.extract.model.kernel import Call, Operand, Template, contiguous
from tensor_graphs.extract.model.meaning import output_terms
from tensor_graphs.imported import BROKEN

from ...waiting import wait_for
from .. import kernel_interpreter
from ..reference import expected
from ..sampled_calls import sample
from ..test_kernel_ir import KERNELS, memory_for
from ..test_kernel_ir import kernel as plain_kernel
from ..test_kernel_ir import values as kernel_values
from ..together import outputs_of

pytestmark = pytest.mark.skipif(bool(c.BACKEND.unavailable()), reason=c.BACKEND.unavailable() or "-")

Array = np.ndarray


def library(functions: dict[str, str]) -> Any:
    """Many C functions compiled at once."""
    return c_helpers.c_library(library_text(functions).split('r"""')[1].split('"""')[0])


def pointer(x: Array) -> Any:
    return ctypes.c_void_p(x.ctypes.data)


def test_texts_are_searched_once_for_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    searched, called = [], c_math._called
    monkeypatch.setattr(c_math, "_called", lambda texts: searched.append(texts) or called(texts))
    found = list(c_math.needed("y = log1p_f(x);"))
    assert [t in found for t in map(c_math.DEFINITIONS.get, ("log_f", "log1p_f", "exp_f"))] == [True, True, False]
    assert found[-1] == c_math.DEFINITIONS["log1p_f"] and len(searched) == 1


# ---------------------------------------------------------------- elementary functions
def test_functions_are_accurate_over_all_of_float32() -> None:
    """Every 1499th float32, and the special ones."""
    reference: dict[str, Callable[..., Array]] = {
        "exp": np.exp, "exp2": np.exp2, "tanh": np.tanh, "erf": erf, "log": np.log, "log1p": np.log1p, "expm1": np.expm1,
    }  # fmt: skip
    assert reference.keys() == c_math.ULPS.keys()
    loop = "for (long i = 0; i < {n}; i++) y[i] = {f}_f(x[i]);"
    special = [
        0.0,
        -0.0,
        math.inf,
        -math.inf,
        math.nan,
        1e-45,
        -1e-45,
        1.0,
        -1.0,
        88.72283,
        88.73,
        -103.97,
        3.4e38,
        -3.4e38,
    ]
    x = np.concatenate([np.arange(0, 1 << 32, 1499, np.uint64).astype(np.uint32).view(np.float32), np.float32(special)])
    made = library({
        f"all_{f}": f"void all_{f}(const float *x, float *y)\n{{\n    #pragma omp simd\n    {loop.format(n=x.size, f=f)}\n}}"
        for f in reference
    })  # fmt: skip
    for name, function in reference.items():
        y = np.empty_like(x)
        c_helpers.c_function(made, f"all_{name}")(pointer(x), pointer(y))
        with np.errstate(all="ignore"):
            want = function(x.astype(np.float64))
            rounded = want.astype(np.float32)
            finite = np.isfinite(rounded)
            ulp = np.abs(y[finite] - want[finite]) / np.maximum(np.spacing(np.abs(rounded[finite])), 1e-45)
        assert np.array_equal(np.isnan(y), np.isnan(want)), name
        assert np.array_equal(y[np.isinf(rounded)], rounded[np.isinf(rounded)]), name
        assert ulp.max() <= c_math.ULPS[name], f"{name}: {ulp.max()} at {x[finite][ulp.argmax()]}"
        assert np.array_equal(np.signbit(y[finite]), np.signbit(rounded[finite])), name


# ---------------------------------------------------------------- kernels of all classes
def kernel_call(root: Tensor) -> Call:
    operand = lambda kind: Operand(kind, contiguous(kind.shape))
    inputs = {str(n.attr("name")): operand(n.type) for n in topological([root]) if n.op == "input"}
    return Call(inputs, operand(root.type), {})


def test_kernels_of_every_class() -> None:
    cases, names = [], []
    for name, made in KERNELS.items():
        root = made()
        if not isinstance(root, Tensor):
            continue  # several results
        template, call = generated(root), kernel_call(root)
        if template.lower(call) is None:
            assert template.family in ("contraction", "attention", "conv"), (
                f"only products are left to libraries: {name}"
            )
            continue
        rng = np.random.default_rng(0)
        cases.append((template, call, {n: random_values(o.type, rng) for n, o in call.operands.items()}))
        names.append(name)
    assert len(cases) > 10
    for name, case, (got, *_) in zip(names, cases, outputs_of(cases), strict=True):
        np.testing.assert_allclose(got, expected(*case), rtol=2e-5, atol=2e-6, err_msg=name)


def test_one_function_for_several_results() -> None:
    """A residual stream, its norm and the norm's mean: each stored where it is known."""
    x, y, g = t.input("x", (6, 40)), t.input("y", (6, 40)), t.input("g", (40,))
    total = x + y
    roots = [composite.rms_norm(total, g, eps=1e-6), total, t.mean(total, axis=1, keepdims=True)]
    template = c.BACKEND.template(roots)
    operand = lambda kind: Operand(kind, contiguous(kind.shape))
    first, *more = (operand(r.type) for r in roots)
    call = Call({str(n.attr("name")): operand(n.type) for n in (x, y, g)}, first, {}, more=tuple(more))
    assert template.lower(call) is not None
    rng = np.random.default_rng(0)
    values = {n: random_values(o.type, rng) for n, o in call.operands.items()}
    norm, both, mean = run_outputs(template, call, values)
    np.testing.assert_array_equal(both, values["x"] + values["y"])
    np.testing.assert_allclose(mean, both.mean(1, keepdims=True), atol=1e-6)
    np.testing.assert_allclose(norm, expected(template, call, values), rtol=1e-5, atol=1e-6)


# ---------------------------------------------------------------- random bodies against the specification
UNARY = ("neg", "abs", "exp", "tanh", "erf", "sigmoid", "floor", "round", "expm1")
BINARY = ("add", "sub", "mul", "maximum", "minimum", "div")


class Bodies:
    """Random terms over a few inputs: pointwise operations with broadcasts, row and column reductions, views,
    selections."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.shape = tuple(self.rng.choice((1, 2, 3, 5, 7, 16, 33)) for _ in range(self.rng.randint(1, 3)))
        if self.rng.random() < 0.1:
            self.shape = (*self.shape[:-1], 0)
        self.inputs = 0

    def leaf(self) -> Tensor:
        self.inputs += 1
        small = tuple(1 if self.rng.random() < 0.25 else d for d in self.shape)
        return t.broadcast_to(
            t.input(f"x{self.inputs - 1}", small, self.rng.choice(("float32", "float32", "bfloat16"))), self.shape
        )

    def term(self, depth: int) -> Tensor:
        pick = self.rng.random()
        if depth == 0 or pick < 0.1:
            return t.cast(self.leaf(), "float32")
        x = self.term(depth - 1)
        if pick < 0.35:
            return make(self.rng.choice(UNARY), [x], {})
        if pick < 0.65:
            return make(self.rng.choice(BINARY), [x, self.term(depth - 1)], {})
        if pick < 0.75:
            return t.where(
                t.lt(x, self.term(depth - 1)), x, t.full(x.shape, self.rng.choice((0.5, -math.inf, math.nan)))
            )
        if pick < 0.9 and 0 not in self.shape:
            axis = self.rng.randrange(len(self.shape))
            if self.rng.random() < 0.4:
                return composite.softmax(x, axis=axis)
            return t.broadcast_to(make(self.rng.choice(("sum", "max", "min")), [x], {"axes": (axis,)}), self.shape)
        axis = self.rng.randrange(len(self.shape))
        if pick < 0.95 or self.shape[axis] < 2:
            return make("flip", [x], {"axis": axis})
        half = self.shape[axis] // 2
        cut = lambda lo, hi: make("slice", [x], {"axis": axis, "start": lo, "stop": hi, "step": 1})
        left, right = cut(0, half), cut(half, self.shape[axis])
        return t.concat([right, left], axis)


def strided(kind: Any, rng: random.Random) -> Operand:
    """The type in one of the layouts of its permutations."""
    order = list(range(kind.rank))
    rng.shuffle(order)
    step, strides = 1, [0] * kind.rank
    for axis in order:
        strides[axis] = step
        step *= max(kind.shape[axis], 1)
    return Operand(kind, tuple(strides))


def body(seed: int) -> tuple[kir.Kernel, Call, dict[str, Array]] | None:
    """A random kernel with its call and operands; None where the IR has none."""
    made = Bodies(seed)
    root = made.term(3)
    leaves = [n for n in topological([root]) if n.op == "input"]
    if not leaves:
        return None
    kind = made.rng.choice(("float32", "float32", "float16", "bfloat16"))
    output = strided(t.cast(root, kind).type, made.rng)
    call = Call({str(n.attr("name")): strided(n.type, made.rng) for n in leaves}, output, {})
    buffers = {n: kir.Buffer(o.type.dtype, tuple(o.type.shape), o.strides) for n, o in call.buffers.items()}
    rng = np.random.default_rng(seed)
    values = {n: random_values(o.type, rng) for n, o in call.operands.items()}
    for v in values.values():
        if v.size > 4 and made.rng.random() < 0.3:
            v.reshape(-1)[:4] = [np.nan, np.inf, -np.inf, -0.0]
    try:
        return kernel_of(root, {n: str(n.attr("name")) for n in leaves}, buffers), call, values
    except Unfusable:
        return None


@settings(max_examples=4, deadline=None)
@given(st.lists(st.integers(0, 1 << 30), min_size=12, max_size=12, unique=True))
def test_random_bodies_are_what_the_specification_says(seeds: list[int]) -> None:
    found = {f"f{i}": b for i, s in enumerate(seeds) if (b := body(s)) is not None}
    made = library({n: c_source.emit(k, n, str(k)) for n, (k, _, _) in found.items()})
    for name, (kernel, call, values) in found.items():
        flat = {n: flat_of(v, call.operands[n]) for n, v in values.items()}
        size = math.prod(call.output.type.shape)
        out = np.zeros(max(size, 1), dtypes.numpy_dtype(call.output.type.dtype))
        want = np.zeros(max(size, 1))
        kernel_interpreter.run(kernel, {**{n: v.astype(np.float64) for n, v in flat.items()}, "out": want})
        c_helpers.c_function(made, name)(*(pointer(out if n == "out" else flat[n]) for n in kernel.buffers))
        close(out, want, kernel)


def flat_of(v: Array, operand: Operand) -> Array:
    """The memory that an operand lies in."""
    array = in_layout(v, operand)
    return (
        np.lib.stride_tricks.as_strided(array, (max(array.size, 1),), (array.itemsize,))
        if array.size
        else np.zeros(1, v.dtype)
    )


def test_a_loop_within_a_loop_over_the_same_axis() -> None:
    """The IR reuses an axis where its values do not meet: the inner loop's are its own."""
    inner = composite.softmax(t.input("a", (33, 3)), axis=0)
    root = composite.softmax(t.sum(inner, axis=1, keepdims=True) * 9.0, axis=0)
    one, given = plain_kernel(root), kernel_values(root)
    memory = memory_for(one, given)
    kernel_interpreter.run(one, memory)
    out = np.zeros(33, np.float32)
    c_helpers.c_function(library({"f": c_source.emit(one, "f")}), "f")(pointer(given["a"]), pointer(out))
    np.testing.assert_allclose(out, memory["out"], rtol=1e-5)


JUMPS = ("floor", "round", "lt", "le", "eq")


def close(got: Array, want: Array, kernel: kir.Kernel) -> None:
    """Equal up to rounding; all but a few values where some are at a jump."""
    with np.errstate(all="ignore"):
        exact = want.astype(got.dtype).astype(np.float64)
        g = got.astype(np.float64)
        size = np.nanmax(np.abs(exact[np.isfinite(exact)]), initial=1)
        near = np.abs(g - exact) <= {2: 2e-2, 4: 2e-4}[got.dtype.itemsize] * (np.abs(exact) + size)
    agree = near | (np.isnan(g) & np.isnan(exact)) | (g == exact)
    assert agree.mean() > 0.9 if any(e.op in JUMPS for e in kernel.exprs) else agree.all(), str(kernel)


# ---------------------------------------------------------------- every op, every dtype: supported and not
#: op -> why it has no kernel in C. notimpl: not yet; never: left to libraries by design.
GAPS = {
    **dict.fromkeys(("argmax", "argmin", "argsort", "cumsum"), "notimpl: the kernel IR has no index expression for it"),
    "cross_entropy": "notimpl: the kernel IR has no index expression for it",
    "scatter_elements": "notimpl: but for mode set",
    **dict.fromkeys(("floordiv", "mod"), "notimpl: of integers alone"),
    **dict.fromkeys(
        ("matmul", "linear", "attention", "masked_attention", "hiding_attention", "conv", "recurrent"),
        "never: products are the libraries'",
    ),
}  # fmt: skip
DTYPES = ("float32", "float64", "float16", "bfloat16")


def single(op: str) -> Template:
    """NumPy's kernel of one op, which says what the op's operands and attributes are."""
    return next(
        x for x in backend("numpy").templates
        if isinstance(x.term, PatternCall) and x.term.op == op and len(x.operands) == OPS[op].arity == len(x.term.args) and not x.prep
    )  # fmt: skip


def case(op: str, dtype: str, seed: int) -> tuple[Template, Call, dict[str, Array]] | None:
    """A kernel of one op on sampled operands."""
    template = single(op)
    call = sample(template, seed, dtype, attempts=200)
    if call is None:
        return None
    root = output_terms(template, call)[0]
    change = {n: t.input(n.attr("name"), n.shape, n.dtype) for n in topological([root]) if n.op == "param"}
    done: dict[Tensor, Tensor] = dict(change)
    for n in topological([root]):
        if n not in done:
            done[n] = make(n.op, [done[a] for a in n.args], dict(n.attrs), data=n.data)
    rng = np.random.default_rng(seed)
    values = {n: random_values(o.type, rng) for n, o in call.operands.items()}
    return generated(done[root]), Call(call.operands, call.output, {}), values


def reads(call: Call, dtype: str) -> bool:
    return any(o.type.dtype == dtype for o in call.buffers.values())


def test_programs_ask_the_compiler_once_for_the_processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The helper that asks is part of each program's source."""
    log, script = tmp_path / "log", tmp_path / "cc"
    script.write_text(f'#!/bin/sh\necho "$@" >> {log}\nexec cc "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("CC", str(script))
    for op in ("tanh", "exp"):
        found = case(op, "float32", 0)
        assert found is not None
        run_template(*found)
    commands = log.read_text().splitlines()
    assert [" -dM " in c for c in commands].count(True) == 1 and sum("kernels.so" in c for c in commands) == 2


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_op_has_a_kernel_or_is_declared_a_gap(dtype: str) -> None:
    cases: dict[str, tuple[Template, Call, dict[str, Array]]] = {}
    lacking: set[str] = set()
    known = {op for op, entry in OPS.items() if entry.arity and any(
        isinstance(x.term, PatternCall) and x.term.op == op and len(x.term.args) == len(x.operands) for x in backend("numpy").templates
    )}  # fmt: skip
    for op in sorted(known):
        found = next((k for seed in range(6) if (k := case(op, dtype, seed)) is not None and reads(k[1], dtype)), None)
        if found is None:
            continue
        if found[0].lower(found[1]) is None:  # type: ignore[attr-defined]
            lacking.add(op)
        else:
            cases[op] = found
    assert lacking <= GAPS.keys(), f"undeclared gaps: {sorted(lacking - GAPS.keys())}"
    missing = {op for op, why in GAPS.items() if why.startswith("notimpl")}
    assert not missing & cases.keys(), "declared as gaps, but there: update GAPS"
    functions = {f"op_{op}": c_source.emit(k.lower(call).kernel, f"op_{op}") for op, (k, call, _) in cases.items()}  # type: ignore[attr-defined]
    made = library(functions)
    for op, (template, call, values) in cases.items():
        flat = {n: flat_memory(v, call.operands[n]) for n, v in values.items()}
        out = np.zeros(max(math.prod(call.output.type.shape), 1), dtypes.numpy_dtype(call.output.type.dtype))
        order = template.lower(call).kernel.buffers  # type: ignore[attr-defined]
        c_helpers.c_function(made, f"op_{op}")(*(pointer(out if n == "out" else flat[n]) for n in order))
        got = out[: math.prod(call.output.type.shape)].reshape(call.output.type.shape).astype(np.float64)
        tolerance = {2: 2e-2 if dtype == "float16" else 1e-1, 4: 2e-5, 8: 1e-11}.get(dtypes.itemsize(dtype), 0)
        np.testing.assert_allclose(
            got, expected(template, call, values).astype(np.float64), rtol=tolerance, atol=tolerance, err_msg=op
        )


def flat_memory(v: Array, operand: Operand) -> Array:
    """All memory from an operand's first element on."""
    span = 1 + sum((d - 1) * s for d, s in zip(operand.type.shape, operand.strides))
    return np.array(np.lib.stride_tricks.as_strided(in_layout(v, operand), (max(span, 1),), (v.itemsize,)))


# ---------------------------------------------------------------- meanings that are easily lost
def run(root: Tensor, **values: Array) -> Array:
    return run_template(generated(root), kernel_call(root), values)


def run_all(roots: Sequence[Tensor], **values: Array) -> list[Array]:
    """Results of generated kernels, which are compiled together; each reads some of the values."""
    calls = [kernel_call(root) for root in roots]
    cases = [(generated(r), call, {n: values[n] for n in call.operands}) for r, call in zip(roots, calls, strict=True)]
    return [outputs[0] for outputs in outputs_of(cases)]


def test_rows_that_a_mask_hides_are_zero_and_a_nan_stays_in_its_row() -> None:
    x = np.random.default_rng(0).standard_normal((4, 37)).astype(np.float32)
    x[1] = -np.inf
    x[2, 5] = np.nan
    a = t.input("x", (4, 37))
    most, down = (t.max(a, axis=axis, keepdims=True) for axis in (1, 0))
    got, most_found, down_found = run_all([t.exp(a - most), most, down], x=x)
    assert np.all(got[1] == 0) or np.all(np.isnan(got[1]))  # as the specification of exp(a - max a) has it
    assert np.all(np.isnan(got[2])) and np.isfinite(got[[0, 3]]).all()
    assert np.isnan(most_found[2, 0]) and np.isnan(down_found[0, 5])


def test_an_index_out_of_range_reads_the_nearest_row() -> None:
    """A hostile index must not read beyond the table: it clips, as `gather` is defined."""
    root = t.gather(t.input("x", (5, 3)), t.input("i", (4,), "int64"), axis=0) * 2.0
    table = np.arange(15, dtype=np.float32).reshape(5, 3)
    got = run(root, x=table, i=np.array([-(1 << 40), 2, 4, 1 << 40]))
    np.testing.assert_array_equal(got, 2 * table[[0, 2, 4, 4]])


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64"])
def test_whole_numbers_wrap_as_numpys_do(dtype: str) -> None:
    """At the width of their dtype, also where another operation reads them: a wider cast, a comparison, a quotient."""
    limits = np.iinfo(dtype)
    x = np.array([limits.max, limits.max - 1, limits.min, 1, 0], dtype)
    y = np.array([limits.max, 3, limits.min + 1, limits.max, 7], dtype)
    a, b = t.input("x", (5,), dtype), t.input("y", (5,), dtype)
    with np.errstate(all="ignore"):
        cases = (
            (t.cast(a * b, "int64"), (x * y).astype(np.int64)),
            (t.cast(a + b, "float64") * t.input("z", (5,), "float64"), (x + y).astype(np.float64)),
            (t.lt(a - b, a), x - y < x),
            (make("floordiv", [make("neg", [a], {}), b], {}), np.floor_divide(-x, y)),
            (t.cast(t.abs(a), "int64"), np.abs(x).astype(np.int64)),
        )
    for (root, want), got in zip(cases, run_all([r for r, _ in cases], x=x, y=y, z=np.ones(5)), strict=True):
        np.testing.assert_array_equal(got, want, err_msg=str(root))


def test_whole_numbers_wrap_after_a_cast_to_fewer_bits() -> None:
    x = np.array([100, 127, -128, 90], np.float32)
    small = t.cast(t.input("x", (4,)), "int8")
    np.testing.assert_array_equal(
        run(t.cast(small * small, "int32"), x=x), np.square(x.astype(np.int8)).astype(np.int32)
    )


def test_products_of_indices_have_64_bits() -> None:
    where = t.iota((60000,), 0)
    got = run(where * where + t.input("x", (60000,), "int64"), x=np.zeros(60000, np.int64))
    np.testing.assert_array_equal(got, np.arange(60000) ** 2)


@pytest.mark.parametrize("dtype", ["int64", "uint8"])
def test_bits_of_whole_numbers(dtype: str) -> None:
    """No number stands for true there."""
    a = np.array([0, 1, 4, 19, 120], dtype)
    functions = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}
    cases = [(op, number) for op in functions for number in (0, 3, 16)]
    roots = [make(op, [t.input("x", (5,), dtype), t.full((1,), number, dtype)], {}) for op, number in cases]
    for (op, number), got in zip(cases, run_all(roots, x=a), strict=True):
        np.testing.assert_array_equal(got, functions[op](a, np.asarray(number, dtype)), err_msg=f"{op} {number}")


def test_integers_are_divided_as_numpy_does() -> None:
    """Rounded down; 0 by a divisor of 0; the smallest number by -1 wraps."""
    low = -(1 << 63)
    x = np.array([7, -7, 7, -7, 0, 13, -13, low, low, 5, low + 1])
    y = np.array([2, 2, -2, -2, 3, 7, 7, -1, 0, 0, -1])
    a, b, cases = t.input("x", (11,), "int64"), t.input("y", (11,), "int64"), []
    for op, function in (("floordiv", np.floor_divide), ("mod", np.mod)):
        with np.errstate(all="ignore"):
            cases.append((make(op, [a, b], {}), function(x, y)))
            for by in (767, -3, 1, 1 << 40):
                cases.append((make(op, [a, t.full((1,), by, "int64")], {}), function(x, by)))
    places = make("mod", [t.iota((40,), 0) * 3 - 17, t.full((1,), 8, "int64")], {})
    cases.append((places, (np.arange(40) * 3 - 17) % 8))
    for (root, want), got in zip(cases, run_all([r for r, _ in cases], x=x, y=y), strict=True):
        np.testing.assert_array_equal(got, want, err_msg=str(root))


def test_negative_numbers_are_operands_everywhere() -> None:
    x = t.input("x", (5,))
    values = np.linspace(-2, 2, 5, dtype=np.float32)
    summed = make("neg", [t.broadcast_to(t.full((1,), -0.5), (5,))], {}) + x
    found = run_all([summed, t.maximum(x - (-0.5), t.full((5,), -1.5)) * -2.0], x=values)
    for got, want in zip(found, (0.5 + values, np.maximum(values + 0.5, -1.5) * -2), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)


def test_float64_is_computed_in_float64() -> None:
    x = np.random.default_rng(0).standard_normal((3, 50))
    got = run(composite.softmax(t.input("x", (3, 50), "float64"), axis=1), x=x)
    e = np.exp(x - x.max(1, keepdims=True))
    np.testing.assert_allclose(got, e / e.sum(1, keepdims=True), rtol=1e-14)


def test_large_kernels_are_shared_by_threads_and_give_the_same() -> None:
    root = composite.gelu(t.input("x", (300, 1000))) * t.input("y", (1000,))
    template, call = generated(root), kernel_call(root)
    text = next(iter(template.source(call).values()))  # type: ignore[misc]
    assert "#pragma omp parallel for" in text
    rng = np.random.default_rng(0)
    values = {n: random_values(o.type, rng) for n, o in call.operands.items()}
    np.testing.assert_allclose(
        run_template(template, call, values), expected(template, call, values), rtol=2e-5, atol=2e-6
    )


# ---------------------------------------------------------------- programs, processes, machines
def program() -> Any:

    x, w = tg.input("ctypes", (8, 64)), tg.param("address", (64,))
    root = tg.softmax(tg.gelu(x) * w, axis=1) + 1.0
    return tg.optimize(Graph.of(root, params={"address": np.ones(64, np.float32)}), backend="c", budget=20), root


def test_a_program_with_c_runs_without_this_package(tmp_path: Path) -> None:
    made, _ = program()
    assert 'r"""' in made.source and "void " in made.source, made.source
    made.save(tmp_path / "p")
    x = np.random.default_rng(0).standard_normal((8, 64)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    code = (
        "import sys, runpy, numpy as np\n"
        "from safetensors.numpy import load_file\n"
        "sys.modules['tensor_graphs'] = None\n"
        "run = runpy.run_path('p/program.py')['bind'](load_file('p/weights.safetensors'))\n"
        "np.save('y.npy', run(np.load('x.npy'))[0])\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, timeout=300)
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), made(x), rtol=1e-6)


def test_a_command_that_is_none_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "gcc '")
    with pytest.raises(RuntimeError, match="CC is not a command"):
        c_helpers.c_library("int f(void) { return 1; }\n")
    assert device.c_compiler.__wrapped__() == ""
    assert direct_calls.c_function.__wrapped__("calls") is None


@pytest.mark.parametrize(
    ("content", "why"),
    [("raise OSError('libcudart.so: cannot open shared object file')", r"libcudart\.so"), ("", "has no Tensor")],
)
def test_a_torch_that_cannot_be_used(content: str, why: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A shared library is missing, or it is a user's folder: kernels in C work without it, other programs say why
    not, and backend "auto" searches without it."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(content)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    device.gpu_facts.cache_clear()
    assert c.BACKEND.template([t.tanh(t.input("x", (3,)))]).name
    with pytest.raises(DeviceUnavailableError, match=why):
        emission.executed("import torch\n", "case")
    assert re.search(why, BROKEN.pop("torch"))  # not by monkeypatch, which would put it back
    x, limits = tg.input("x", (2, 3)), tg.Limits(iterations=1, nodes=50)
    y = tg.input("y", (3, 4))
    try:
        made = tg.optimize(x @ y, backend="auto", measure=False, budget=1, deterministic=True, limits=limits)
    finally:
        BROKEN.pop("torch", None)
        sys.modules.pop("torch", None)  # the other one
        device.gpu_facts.cache_clear()
    assert made.report.backend == "numpy + c on cpu" and re.search(why, str(made.report.warnings))


def test_without_a_compiler_there_are_no_kernels_in_c(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CC", str(tmp_path / "none"))
    c._unavailable.cache_clear()
    try:
        assert "C compiler" in c.BACKEND.unavailable()
        assert "c" not in [b.name for b in select("auto")]
        with pytest.raises(RuntimeError, match="set CC"):
            c_helpers.c_library("int f(void) { return 1; }\n")
        if not on_gpu(select("auto")):
            for _ in range(2):  # the second time its plan is remembered
                made = tg.optimize(tg.exp(tg.input("x", (3,))), backend="auto", budget=5.0, costdb=tmp_path / "store")
                assert ["C compiler" in w for w in made.report.warnings] == [True]
    finally:
        monkeypatch.undo()
        c._unavailable.cache_clear()


def test_a_compiler_that_hangs_or_fails_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pid, seconds = tmp_path / "pid", 0.1
    while not (pid.exists() and pid.read_text().endswith("\n")):  # the shell needs time to begin
        seconds *= 2
        with pytest.raises(RuntimeError, match="sh timed out after"):
            c_helpers.c_output(["sh", "-c", f"sleep 600 & echo $! > {pid}; wait"], seconds)
    state = Path(f"/proc/{pid.read_text().strip()}/stat")
    with suppress(OSError):  # it is gone
        wait_for(lambda: state.read_text().split()[2] == "Z")  # a killed process may run on for a moment
    with pytest.raises(RuntimeError, match="failed"):
        c_helpers.c_library("this is no C\n")


def test_a_search_takes_other_kernels_where_the_compiler_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the program's source, after it has compiled other ones: the compiler gets the time that is left, and the
    report says so."""
    monkeypatch.setenv("TENSOR_GRAPHS_HOME", str(tmp_path))
    assert not c.BACKEND.unavailable()
    (tmp_path / "cc").write_text('#!/bin/sh\ncase "$*" in *-dM*) exec cc "$@";; esac\nsleep 600\n')
    (tmp_path / "cc").chmod(0o700)
    monkeypatch.setenv("CC", str(tmp_path / "cc"))
    monkeypatch.setattr(compile_clock, "LEAST_S", 0.1)
    monkeypatch.setattr(compile_clock, "CHARACTERS_PER_S", 1e6)
    x, limits = tg.input("x", (256, 512)), tg.Limits(iterations=1, nodes=50)
    made = tg.optimize(tg.exp(x) * 2 + x, backend="c", budget=1, deterministic=True, limits=limits, measure=False)
    given = np.ones((256, 512), np.float32)
    np.testing.assert_allclose(made(given), 2 * np.exp(given) + given, rtol=1e-5)
    assert "usable kernels of c" in made.report.omitted and any("timed out after" in w for w in made.report.warnings)


def test_compiled_kernels_are_kept_and_a_folder_that_cannot_be_written_is_no_obstacle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENSOR_GRAPHS_HOME", str(tmp_path))
    for _ in range(2):
        assert c_helpers.c_library("int f(void) { return 7; }\n").f() == 7
    assert [p.suffix for p in (tmp_path / "c").iterdir()] == [".so"]
    (made,) = (tmp_path / "c").iterdir()
    damaged = tmp_path / "other"
    (damaged / "c").mkdir(parents=True)
    (damaged / "c" / made.name).write_bytes(made.read_bytes()[:100])
    monkeypatch.setenv("TENSOR_GRAPHS_HOME", str(damaged))
    assert c_helpers.c_library("int f(void) { return 7; }\n").f() == 7, "a damaged one is made again"
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("TENSOR_GRAPHS_HOME", str(blocked))
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    assert c_helpers.c_library("int f(void) { return 8; }\n").f() == 8
    assert not list((tmp_path / "scratch").iterdir()), "nothing is left behind"


def test_measuring_makes_the_same_kernel_from_its_terms() -> None:
    from tensor_graphs.backends.tuning.cpu_worker import decode, encode

    root = KERNELS["layer_norm"]()
    template, call = c.BACKEND.template([root]), kernel_call(root)
    again, job = decode(encode(template, call))
    assert again.identity == template.identity and job.operands == call.operands


def test_a_scatter_writes_into_its_operand_or_a_copy_of_it() -> None:
    """Indices from the end, indices that are not there, and the last of equal ones; fused with what computes the
    updates."""
    rng = np.random.default_rng(0)
    values = {
        "cache": rng.normal(size=(2, 6, 4)).astype(np.float32),
        "at": np.array([[[3], [-1], [3]], [[0], [1], [2]]]).repeat(4, 2),
        "x": rng.normal(size=(2, 3, 4)).astype(np.float32),
    }
    cache, at, x = (t.input(n, v.shape, v.dtype.name) for n, v in values.items())
    template = generated(t.scatter_elements(cache, at, t.abs(x) + 1.0, 1))
    call = Call({n: Operand(Type(v.shape, v.dtype.name), contiguous(v.shape)) for n, v in values.items()},
                Operand(cache.type, contiguous(cache.shape)), {})  # fmt: skip
    assert template.inplace == ("cache",)
    want = values["cache"].copy()
    new = np.abs(values["x"]) + 1
    want[0, 5], want[0, 3], want[1, :3] = new[0, 1], new[0, 2], new[1]
    assert np.array_equal(run_template(template, call, values), want)
    found = template.lower(call)
    assert found is not None
    text = library_text({"scatter": c_source.emit(found.kernel, "scatter")})
    function = c_helpers.c_library(text.split('r"""')[1].split('"""')[0]).scatter
    own = values["cache"].copy()
    function(*(ctypes.c_void_p({**values, "cache": own, "out": own}[n].ctypes.data) for n in found.kernel.buffers))
    assert np.array_equal(own, want)
    values["at"][0, 0] = 6  # not there: not written
    want[0, 3] = new[0, 2]
    assert np.array_equal(run_template(template, call, values), want)


def test_arithmetic_on_bools_inside_a_kernel_is_logic() -> None:
    """Two true values are one true value, not 2, before another op reads them."""
    x, y, z = (tg.input(n, (64,), "bool") for n in "xyz")
    drawn = {n: np.random.default_rng(i).random(64) < 0.5 for i, n in enumerate("xyz")}
    outputs = {}
    for op in ("add", "mul", "maximum", "minimum"):
        inner = make(op, (x, y))
        outputs |= {f"{op} {after}": make(after, (inner, z)) for after in ("xor", "eq", "lt", "add")}
        outputs[f"{op} cast"] = make("cast", (inner,), {"dtype": "int32"})
    graph = Graph.of(outputs)
    program = tg.optimize(graph, backend="c", budget=5, measure=False, verify=False)
    found = program(*(drawn[n] for n in program.input_names))
    for name, wanted in zip(graph.names, evaluate(graph, drawn), strict=True):
        np.testing.assert_array_equal(found[name], wanted, err_msg=name)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_product_of_one_row_reads_its_weights_across_too(dtype: str) -> None:
    """Beside the kernel over a matrix as it lies is one over its transposed copy, where the elements of a sum are
    neighbours."""
    rng, kind = np.random.default_rng(3), dtypes.numpy_dtype(dtype)
    x, w = tg.input("x", (1, 96)), tg.param("w", (96, 48), dtype)
    row, values = rng.standard_normal((1, 96), np.float32), rng.standard_normal((96, 48), np.float32).astype(kind)
    graph = Graph.of(tg.relu(x @ t.cast(w, "float32")), params={"w": values})
    found = candidate_hypergraph(view_of(graph), [backend("numpy"), backend("c")], view_strides)
    products = [k for k in found.candidates if k.template.name == "c.contraction"]
    assert {len(k.template.prep) for k in products} == {0, 1}
    for k in products:
        operands = k.call.operands
        given = {
            o: row if v.type.shape[0] == 1 else values.astype(dtypes.numpy_dtype(v.type.dtype))
            for o, v in operands.items()
        }
        exact = evaluate(output_terms(k.template, k.call), {}, params=given, float64=True)[0]
        np.testing.assert_allclose(run_template(k.template, k.call, given), exact, rtol=1e-5, atol=1e-5)
        again, _ = cpu_worker.decode(cpu_worker.encode(k.template, k.call))
        assert (again.identity, [*again.prep]) == (k.template.identity, [*k.template.prep])
