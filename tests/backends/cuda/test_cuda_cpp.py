"""Generated CUDA C++: every class of kernels in many layouts, run by threads on the CPU against the specification in
NumPy; golden files; whole programs; and NVRTC, where it is installed."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import tensor_graphs.egraph.builders.builders as t
from tensor_graphs.backends.cuda.backend import BACKEND, generated
from tensor_graphs.backends.cuda.emit.spelling import CudaLaunch
from tensor_graphs.backends.generate.call_code import launches
from tensor_graphs.backends.generate.emitter import split_axis
from tensor_graphs.backends.generate.kernel_text import kernel_text, module_of
from tensor_graphs.backends.generate.template import GeneratedKernel, template_of
from tensor_graphs.backends.ir.unfusable import Unfusable
from tensor_graphs.backends.lowering.split_reduction import split
from tensor_graphs.backends.program.helpers.cuda_helpers import CUDA_LIBRARY, cuda_text
from tensor_graphs.egraph.composites import composite_ops as c
from tensor_graphs.egraph.evaluate.interpret import evaluate
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.ir.tensor import Tensor
from tensor_graphs.egraph.ops.ops import Type
from tensor_graphs.egraph.types.dtypes import numpy_dtype
from tensor_graphs.extract.model.kernel import Call, Operand, contiguous

from .. import kernel_interpreter
from ..cuda_host import NAME, Guarded, Kernel, compiled, source_of
from ..test_kernel_ir import KERNELS, error, leaves, x

GOLDEN = Path(__file__).parents[1] / "golden"
TOLERANCE = {"float64": 1e-13, "float32": 3e-6, "float16": 1.5e-3, "bfloat16": 1.2e-2}


def _vector(rows: int, shape: tuple[int, int], lora: bool = False) -> Tensor:
    a, w = x("a", rows, shape[0]), x("w", *shape)
    plain = t.matmul(a, w)
    return plain + t.matmul(t.matmul(a, x("u", shape[0], 4)), x("v", 4, shape[1])) if lora else plain


def _picked() -> Tensor:
    return t.gather(x("table", 9, 24), t.input("i", (5,), "int64"), 0) * 2.0


def _masked() -> Tensor:
    seen = t.le(t.iota((12, 20), 1), t.iota((12, 20), 0))
    return c.softmax(t.where(seen, x("a", 12, 20), t.full((1, 1), float("-inf"))), axis=1)


OWN: dict[str, Callable[[], Tensor]] = {
    "gated_vector": lambda: c.silu(_vector(1, (64, 48))) * t.matmul(x("a", 1, 64), x("v", 64, 48)),
    "three_rows": lambda: _vector(3, (96, 40)) + x("b", 40),
    "low_rank_vector": lambda: _vector(1, (64, 48), lora=True),
    "matrix_vector": lambda: t.matmul(x("w", 40, 64), x("a", 64, 1)),
    "batched_vector": lambda: t.matmul(x("a", 3, 1, 64), x("w", 3, 64, 40)),
    "odd_vector": lambda: _vector(1, (37, 29)),
    "picked": _picked,
    "masked": _masked,
    "joined_evenly": lambda: t.concat([x("a", 4, 16), x("b", 4, 24)], 1) * 2.0,
    "padded_evenly": lambda: t.pad(x("a", 6, 16), [(1, 2), (8, 16)], 0.5) + 1.0,
    "odd_rows": lambda: c.softmax(x("a", 5, 37), axis=1),
    "one_element": lambda: t.exp(x("a", 1, 1)) + 1.0,
    "one_row": lambda: t.sum(x("a", 1, 300) * x("b", 1, 300), axis=1, keepdims=True),
    "one_column": lambda: t.prod(x("a", 33, 3), axis=0, keepdims=True),
    "middle": lambda: t.max(x("a", 6, 40, 10), axis=1, keepdims=True),
    "heads": lambda: t.permute(x("a", 16, 4, 24), (1, 0, 2)) * 1.5,
    "swapped_heads": lambda: t.permute(x("a", 16, 8, 24), (2, 1, 0)) + 1.0,
    "normed_turned": lambda: t.permute(c.rms_norm(x("a", 2, 48, 32), x("g", 32), eps=1e-6), (0, 2, 1)),
    "normed_turned_odd": lambda: t.permute(c.softmax(x("a", 21, 40), axis=1), (1, 0)),
    "logic": lambda: t.where(t.logical_and(t.lt(x("a", 9, 9), x("b", 9)), t.logical_not(t.eq(x("b", 9), x("a", 9, 9)))), x("a", 9, 9), -x("b", 9)),
}  # fmt: skip
ALL = {**KERNELS, **OWN}
#: Layouts beside those that are ranked: walked rows, many repetitions, whole blocks along a few elements.
FORCED: dict[str, list[dict[str, int]]] = {
    "softmax": [{"tn": 16}, {"tn": 8, "vn": 2, "tm": 8}, {"tn": 32, "un": 2, "tm": 2, "um": 4}],
    "masked": [{"tn": 8, "tm": 4}, {"tn": 2, "vn": 2, "tm": 64}],
    "layer_norm": [{"tn": 16, "vn": 2}, {"tn": 256}],
    "column_sum": [{"tm": 4, "vm": 2, "t0": 16, "split": 4}, {"tm": 1, "t0": 32, "u0": 2, "split": 2, "early": 1}],
    "row_max": [{"t0": 4, "tm": 16, "um": 2}, {"t0": 64, "v0": 2, "split": 2}],
    "norm_vector": [
        {"tn": 2, "t0": 16, "u0": 2},
        {"tn": 4, "vn": 8, "t0": 8, "u0": 2, "ahead": 2},
        {"tn": 2, "vn": 4, "t0": 8, "ahead": 3, "split": 2},
        {"tn": 8, "vn": 4, "t0": 128, "split": 4},
        {"t0": 8, "v0": 4, "un": 4},
        {"t0": 8, "v0": 4, "un": 4, "early": 1, "warm": 1},
        {"tn": 2, "vn": 4, "t0": 8, "ahead": 3, "split": 2, "early": 1, "warm": 1},
        {"tn": 4, "vn": 8, "t0": 8, "u0": 2, "ahead": 2, "staged": 1},
        {"t0": 8, "v0": 4, "un": 4, "early": 1, "warm": 1, "staged": 1},
    ],
    "gated_vector": [{"tn": 4, "vn": 4, "t0": 32, "split": 2}, {"tn": 8, "vn": 8, "t0": 64, "early": 1, "warm": 1}],
    "odd_vector": [{"tn": 8, "t0": 16, "early": 1, "warm": 1}, {"tn": 4, "vn": 1, "t0": 64, "early": 1, "warm": 1}],
    "low_rank_vector": [{"tn": 4, "vn": 4, "t0": 16, "u1": 4, "split": 4}],
    "three_rows": [
        {"tn": 4, "vn": 2, "t0": 32, "um": 4, "split": 2},
        {"t0": 4, "tn": 2, "vn": 8, "u0": 5, "um": 4, "ahead": 2},
    ],
    "matrix_vector": [{"t0": 4, "v0": 8, "un": 2, "ahead": 2}, {"t0": 4, "v0": 4, "tn": 16, "ahead": 1, "early": 1}],
    "transposed": [{"tm": 16, "tn": 4, "vm": 2, "vn": 4, "um": 2}, {"tn": 64}],
}


def call_of(template: GeneratedKernel, dtype: str) -> Call:
    """A call over row-major operands; integers stay what they are."""
    operands = {
        str(n.attr("name")): Operand(Type(n.shape, n.dtype if n.dtype in ("int64", "uint8", "int8") else dtype), contiguous(n.shape))  # type: ignore[arg-type]
        for root in template.roots for n in leaves(root)
    }  # fmt: skip
    out, *more = (Operand(Type(r.shape, dtype), contiguous(r.shape)) for r in template.roots)  # type: ignore[arg-type]
    return Call({o: operands[o] for o in template.operands}, out, {}, more=tuple(more))


def memory(template: GeneratedKernel, call: Call, seed: int = 0) -> dict[str, Guarded]:
    """Every buffer of a scheduled call, guarded: inputs of random numbers, everything else poison."""
    found = template.lower(call)
    assert found is not None
    buffers, rng = dict(found.kernel.buffers), np.random.default_rng(seed)
    parts = call.schedule.get("split", 1)
    if parts > 1:
        buffers |= {
            n: b for n, b in split(found.kernel, split_axis(found.shape), parts)[0].buffers.items() if n[:4] == "part"
        }
    made = {n: Guarded.of(prod(b.shape), numpy_dtype(b.dtype)) for n, b in buffers.items()}
    for name in template.operands:
        array = made[name].array
        if array.dtype.kind in "iu":
            array[:] = rng.integers(0, 120 if array.itemsize == 1 else 9, array.size)
        else:
            array[:] = rng.standard_normal(array.size).astype(array.dtype)
    made["counters"] = Guarded.of(1 << 10, np.int32)
    made["counters"].array[:] = 0
    return made


def check(template: GeneratedKernel, call: Call, launch: CudaLaunch, kernel: Kernel, dtype: str) -> None:
    """Run a kernel; its results against the specification, and nothing else written."""
    found = template.lower(call)
    assert found is not None
    where = memory(template, call)
    want = {n: g.array.astype(np.float64) if g.array.dtype.kind in "fV" else g.array.copy() for n, g in where.items()}
    kernel_interpreter.run(found.kernel, want)
    before = {n: where[n].array.tobytes() for n in template.operands}
    for _ in range(2):  # counters are zero again: it can run twice
        kernel([where[a].array.ctypes.data for a in launch.args], launch.grid, launch.block)
    assert all(g.intact for g in where.values())
    assert all(where[n].array.tobytes() == b for n, b in before.items()) and not where["counters"].array.any()
    for store in found.kernel.stores:
        got = where[store.buffer].array.astype(np.float64)
        assert error(got, want[store.buffer]) < TOLERANCE[dtype], dict(call.schedule)


def schedules(name: str, template: GeneratedKernel, call: Call) -> list[dict[str, int]]:
    """Some of those that are ranked, of every kind, and those forced."""
    space = [dict(s) for s in template.space(call)]  # type: ignore[misc]
    some = [*space[:2], *space[-1:], *[s for s in space if s.get("split", 1) > 1][:1], *FORCED.get(name, ())]
    return [s for i, s in enumerate(some) if s not in some[:i]]


def cases(dtype: str) -> Iterator[tuple[str, GeneratedKernel, Call, CudaLaunch]]:
    """Every kernel that the emitter takes, in some layouts."""
    for name in ("pointwise", "softmax", "norm_vector", "transposed") if dtype == "float16" else ALL:
        template = generated(ALL[name]())
        call = call_of(template, dtype)
        if template.lower(call) is None:
            continue
        for schedule in schedules(name, template, call):
            scheduled = replace(call, schedule=schedule)
            (launch,) = launches(template, scheduled)
            assert isinstance(launch, CudaLaunch)
            yield name, template, scheduled, launch


def test_rows_that_are_written_the_other_way_round_are_turned_in_registers() -> None:
    """The best guess reads vectors along a row and writes them along neighbouring rows."""
    template = generated(t.permute(c.rms_norm(x("a", 32, 2048, 128), x("g", 128), eps=1e-6), (0, 2, 1)))
    call = call_of(template, "bfloat16")
    best = next(iter(template.space(call)))  # type: ignore[misc]
    assert best["vn"] == 8 and best["vm"] >= 2
    (launch,) = launches(template, replace(call, schedule=best))
    assert isinstance(launch, CudaLaunch)
    assert "read<8>" in launch.text and f"Pack<bf16, {best['vm']}>" in launch.text


def test_matrices_are_prefetched_before_the_wait_for_the_previous_kernel() -> None:
    """Nothing is read there, and each matrix of a product is prefetched; without a matrix there is no such schedule."""
    template = generated(c.silu(_vector(1, (4096, 1024))) * t.matmul(x("a", 1, 4096), x("v", 4096, 1024)))
    call = call_of(template, "bfloat16")
    warm = [s for s in template.space(call) if s.get("warm")]  # type: ignore[misc]
    assert warm and all(s["early"] for s in warm)
    (launch,) = launches(template, replace(call, schedule=warm[0]))
    assert isinstance(launch, CudaLaunch)
    before, after = launch.text.split("await_previous();")
    assert before.count("warm<") == 2 and "read<" not in before and "fetch(" not in before and "warm<" not in after
    dot = generated(t.matmul(x("a", 1, 64), x("b", 64, 1)))
    with pytest.raises(Unfusable, match="no matrix"):
        launches(dot, replace(call_of(dot, "float32"), schedule={"t0": 32, "early": 1, "warm": 1}))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_layouts_of_every_class_compute_what_is_specified(dtype: str, tmp_path: Path) -> None:
    found = list(cases(dtype))
    assert dtype == "float16" or {"column_sum", "picked", "three_rows", "masked", "middle"} <= {n for n, *_ in found}
    kernels = compiled(source_of(launch for *_, launch in found), tmp_path)
    for _, template, call, launch in found:
        check(template, call, launch, kernels[launch.name], dtype)


def _compiled_alone(template: GeneratedKernel, call: Call, folder: Path) -> tuple[CudaLaunch, Kernel]:
    (launch,) = launches(template, call)
    assert isinstance(launch, CudaLaunch)
    return launch, compiled(source_of([launch]), folder)[launch.name]


def test_double_precision(tmp_path: Path) -> None:
    template = generated(c.softmax(x("a", 5, 48) * 0.3, axis=1))
    call = call_of(template, "float64")
    check(template, call, *_compiled_alone(template, call, tmp_path), "float64")


def test_sines_and_cosines_of_all_sizes(tmp_path: Path) -> None:
    """To two units in the last place, also next to multiples of pi / 2 and far from zero, where other code reduces."""
    turns = np.arange(-3000, 3000) * (np.pi / 2)
    far = np.random.default_rng(0).standard_normal(2000) * np.repeat([1.0, 1e3, 1e5, 1e9, 1e30], 400)
    given = np.concatenate([turns, far, [0.0, 105614.9, 105615.0, 1e-40, np.inf, -np.inf, np.nan, 3.4e38]]).astype("f4")
    template = generated([t.sin(x("a", len(given))), t.cos(x("a", len(given)))])
    operand = Operand(Type(given.shape, "float32"), (1,))
    launch, kernel = _compiled_alone(template, Call({"a": operand}, operand, {}, more=(operand,)), tmp_path)
    found = np.zeros((2, len(given)), "f4")
    places = {"a": given, "out": found[0], "out1": found[1]}
    kernel([places[n].ctypes.data for n in launch.args], launch.grid, launch.block)
    with np.errstate(invalid="ignore"):
        for y, exact in zip(found, (np.sin(given.astype("f8")), np.cos(given.astype("f8")))):
            fine = np.isfinite(exact)
            assert (np.isnan(y) == ~fine).all()
            assert (np.abs(y - exact)[fine] <= 2 * np.spacing(np.abs(exact[fine]).astype("f4"))).all()


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int32"])
def test_whole_numbers_wrap_before_they_are_widened(dtype: str, tmp_path: Path) -> None:
    """C++ adds narrow integers as `int`."""
    a, b = t.input("x", (4, 8), dtype), t.input("y", (4, 8), dtype)
    root = t.cast(a * b + a, "int64")
    template = generated(root)
    kinds = Operand(Type((4, 8), dtype), contiguous((4, 8)))
    call = Call(dict.fromkeys(template.operands, kinds), Operand(Type((4, 8), "int64"), contiguous((4, 8))), {})
    launch, kernel = _compiled_alone(template, call, tmp_path)
    x, y = np.random.default_rng(0).integers(0, np.iinfo(dtype).max, (2, 4, 8), dtype=dtype)
    out, given = np.zeros((4, 8), np.int64), {"x": x, "y": y}
    kernel([{**given, "out": out}[n].ctypes.data for n in launch.args], launch.grid, launch.block)
    np.testing.assert_array_equal(out, (x * y + x).astype(np.int64))


def test_several_results_of_one_kernel(tmp_path: Path) -> None:
    """A residual and the statistics of its rows."""
    total = x("a", 12, 40) + x("b", 12, 40)
    template = template_of(BACKEND.emitter, [total, t.sum(total * total, axis=1, keepdims=True)])
    call = call_of(template, "float32")
    check(template, call, *_compiled_alone(template, call, tmp_path), "float32")


@pytest.mark.parametrize("size", [80, 300])
def test_a_block_computes_a_row_once_for_all_its_columns(size: int, tmp_path: Path) -> None:
    """A norm of a residual sum, which is a result too, before two products; weights are read before the wait for the
    previous kernel where a block covers the row."""
    total = x("a", 1, size) + c.rms_norm(x("b", 1, size), x("g", size), eps=1e-6)
    row = c.rms_norm(total, x("h", size), eps=1e-6)
    gate, up = (t.matmul(row, t.transpose(x(name, 24, size))) for name in "wv")
    template = template_of(BACKEND.emitter, [c.silu(gate) * up, total])
    schedule = {"t0": 32, "v0": 4, "tn": 2, "un": 2, "u0": 1, "um": 1, "early": 1, "staged": 1}
    call = replace(call_of(template, "bfloat16"), schedule=schedule, constant=frozenset("ghwv"))
    launch, kernel = _compiled_alone(template, call, tmp_path)
    before, after = launch.text.split("await_previous();")
    held = all(f"read<4>({operand}" in before for operand in ("w_", "v_"))
    assert held == (size <= 128) and "staged_row_[" not in before
    assert after.count("__syncthreads") == 1 and after.count("across<Sum, 1, 64, 64>") == 2
    check(template, call, launch, kernel, "bfloat16")


def test_only_a_computed_row_of_one_product_is_staged() -> None:
    for root in (_vector(1, (64, 48)), _vector(3, (96, 40)) + x("b", 40), _vector(1, (64, 48), lora=True)):
        template = generated(root)
        call = call_of(template, "bfloat16")
        assert not any(s.get("staged") for s in template.space(call))  # type: ignore[misc]
        assert template.fits is not None
        first = next(dict(s) for s in template.space(call) if "t0" in s and not s.get("split"))  # type: ignore[misc]
        assert template.fits(replace(call, schedule=first))
        assert not template.fits(replace(call, schedule=first | {"staged": 1}))


# ---------------------------------------------------------------- made by hypothesis
SIZES = st.sampled_from((1, 2, 3, 5, 8, 17, 24, 33, 64))
UNARY: Sequence[Callable[[Tensor], Tensor]] = (
    lambda v: t.exp(-t.abs(v)), t.tanh, t.abs, c.silu, c.gelu, t.neg, t.sin, lambda v: v * t.tanh(v), lambda v: t.maximum(v, v * 0.5),
)  # fmt: skip
BINARY: Sequence[Callable[[Tensor, Tensor], Tensor]] = (
    t.add,
    t.mul,
    t.sub,
    t.maximum,
    t.minimum,
    lambda a, b: t.where(t.lt(a, b), a, b),
)


@st.composite
def terms(draw: Any) -> Tensor:
    """Pointwise chains with broadcasts, transpositions, reductions along either axis, and products of a few rows."""
    rows, cols = draw(SIZES), draw(SIZES)
    count = iter(range(20))

    def operand() -> Tensor:
        kind = draw(st.sampled_from(("full", "row", "column", "turned", "slice")))
        name = f"x{next(count)}"
        if kind == "turned":
            return t.permute(x(name, cols, rows), (1, 0))
        if kind == "slice":
            return t.slice_axis(x(name, rows, cols + 3), 1, 2, cols + 2)
        return x(name, *{"full": (rows, cols), "row": (1, cols), "column": (rows, 1)}[kind])

    found = operand() + x(f"x{next(count)}", rows, cols)
    for _ in range(draw(st.integers(0, 4))):
        op = draw(st.sampled_from((*UNARY, *BINARY)))
        found = op(found) if op in UNARY else op(found, operand())
    last = draw(st.sampled_from(("none", "row", "column", "softmax", "norm", "product")))
    if last in ("row", "column"):
        reduce = draw(st.sampled_from((t.sum, t.max, t.min)))
        return reduce(found, axis=int(last == "row"), keepdims=True)
    if last == "softmax":
        return c.softmax(found, axis=1)
    if last == "norm":
        return c.rms_norm(found, x("g", cols), eps=1e-6)
    if last == "product" and rows <= 3:
        return t.matmul(found, x("w", cols, draw(SIZES)))
    return found


@settings(max_examples=3, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(
    made=st.lists(st.tuples(terms(), st.integers(0, 99)), min_size=8, max_size=8),
    dtype=st.sampled_from(sorted(TOLERANCE)),
)
def test_any_kernel_computes_what_is_specified(made: list[tuple[Tensor, int]], dtype: str, tmp_path: Path) -> None:
    """Eight at a time, since the compiler takes its time to start."""
    found = {}
    for root, pick in made:
        template = generated(root)
        call = call_of(template, dtype)
        lowered = template.lower(call)
        assert lowered is not None or root.op in ("matmul", "permute"), root  # products of many rows are left to others
        if lowered is not None:
            call = replace(call, schedule=dict(lowered.space[pick % len(lowered.space)]))
            (launch,) = launches(template, call)
            assert isinstance(launch, CudaLaunch)
            found[launch.name] = template, call, launch
    kernels = compiled(source_of(launch for *_, launch in found.values()), tmp_path)
    for name, (template, call, launch) in found.items():
        check(template, call, launch, kernels[name], dtype)


@pytest.mark.parametrize(("name", "vectors"), [("joined_evenly", True), ("padded_evenly", True), ("joined", False)])
def test_bounds_between_vectors_leave_them_whole(name: str, vectors: bool) -> None:
    template = generated(ALL[name]())
    (launch,) = launches(template, call_of(template, "bfloat16"))
    assert ("read<" in launch.source) == vectors


# ---------------------------------------------------------------- what it leaves to others
PRODUCTS = ["product", "gated", "batched_product"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("name", [*PRODUCTS, "attention", "naive_attention"])
def test_products_of_many_rows_and_attention_are_left_to_others(name: str, dtype: str) -> None:
    """Save products of float32, which tiles are for, and nothing but tiles."""
    template = generated(KERNELS[name]())
    found = template.lower(call_of(template, dtype))
    if name in PRODUCTS and dtype == "float32":
        assert found is not None and found.space and all(s.get("tiles") == 1 for s in found.space)
    else:
        assert found is None


@pytest.mark.parametrize(
    "root", [x("a", 0, 5) * 2.0, t.sum(x("a", 5, 0), axis=1, keepdims=True)], ids=["none", "empty"]
)
def test_nothing_is_generated_for_nothing(root: Tensor) -> None:
    template = generated(root)
    assert template.lower(call_of(template, "float32")) is None


def test_a_layout_that_does_not_fit_says_so() -> None:
    template = generated(KERNELS["softmax"]())
    call = replace(call_of(template, "float32"), schedule={"tn": 1, "un": 1024})
    with pytest.raises(Unfusable, match="bytes of one value"):
        launches(template, call)


def test_threads_that_part_are_found(tmp_path: Path) -> None:
    """The threads on the CPU notice what would hang or race on a GPU."""
    text = 'extern "C" __global__ void __launch_bounds__(32)\nparting(float* x) { if (threadIdx.x < 7) __syncthreads(); }\n'
    with pytest.raises(AssertionError, match="part"):
        compiled(CUDA_LIBRARY + text, tmp_path)["parting"]([0], 1, 32)


# ---------------------------------------------------------------- emitted source
@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("shift", [0, 1, 2], ids=["aligned", "by one", "by two"])
def test_vectors_are_as_long_as_addresses_allow(shift: int) -> None:
    """A tensor inside another one begins anywhere: the kernel is compiled for what its address is a multiple of."""
    import torch

    template = generated(t.exp(x("a", 8, 64)))
    call = call_of(template, "bfloat16")
    space = torch.randn(8 * 64 + 8).bfloat16()
    a, out = space[shift : shift + 512].view(8, 64), torch.empty(8, 64, dtype=torch.bfloat16)
    module = module_of(kernel_text(template, call))
    module.run(a, out, None)
    torch.testing.assert_close(out, a.exp(), rtol=1e-2, atol=1e-2)
    ((*_, aligned),) = module.CudaKernel.modules
    assert aligned == {0: 16, 1: 2, 2: 4}[shift]


@pytest.mark.usefixtures("emulated")
def test_programs_bring_their_kernels_and_compile_them_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole program of generated kernels, split reductions included, without this package's help."""
    import torch

    from tensor_graphs.backends.program.emit.emit_gpu import emit_cuda
    from tensor_graphs.backends.program.launch.emission import executed
    from tensor_graphs.extract.model.plan import Plan, Step, Value
    from tensor_graphs.extract.model.pricing import Priced

    a, g, w = x("a", 1, 128), t.param("g", (128,)), t.param("w", (128, 48))
    hidden = t.matmul(c.rms_norm(a, g, eps=1e-6), w)
    graph = Graph.of(c.softmax(hidden, axis=1), name="head")
    first = generated(t.matmul(c.rms_norm(x("a", 1, 128), x("g", 128), eps=1e-6), x("w", 128, 48)))
    second = generated(c.softmax(x("h", 1, 48), axis=1))
    one, two = replace(call_of(first, "float32"), schedule={"tn": 8, "t0": 16, "split": 4}), call_of(second, "float32")
    kinds = [Type((1, 128), "float32"), Type((128,), "float32"), Type((128, 48), "float32"), Type((1, 48), "float32")]
    origins = [("input", "a"), ("weight", "g"), ("weight", "w"), ("kernel", ""), ("kernel", "")]
    values = tuple(
        Value(i, k, contiguous(k.shape), o, n)
        for i, (k, (o, n)) in enumerate(zip([*kinds, kinds[-1]], origins))  # type: ignore[arg-type]
    )
    price = Priced(1.0, 1.0, 1.0, "bound")
    places = {"a": 0, "g": 1, "w": 2, "h": 3}
    steps = tuple(
        Step(m, call, tuple((o, places[o]) for o in m.operands), out, price)
        for m, call, out in ((first, one, 3), (second, two, 4))
    )
    plan = Plan(graph, values, steps, {1: g, 2: w}, (4,), {}, 2.0, 2.0)
    source = emit_cuda(plan).source
    assert source.count("class CudaKernel") == 1 and source.count("struct bf16 {") == 1
    assert "import tensor_graphs" not in source and "from tensor_graphs" not in source
    rng = np.random.default_rng(0)
    given = {n: rng.standard_normal(s).astype(np.float32) for n, s in (("a", (1, 128)), ("g", 128), ("w", (128, 48)))}
    space = executed(source, "head")
    run = space["bind"]({n: given[n] for n in "gw"}, None, "cpu", graph=False)
    for scale in (1.0, 2.0):
        (got,) = run(torch.from_numpy(given["a"] * scale))
        want = evaluate(graph, {"a": given["a"] * scale}, params={n: given[n] for n in "gw"}, float64=True)[0]
        assert error(got.numpy(), want) < 1e-6
    known = space["CudaKernel"].known
    assert sorted(name for name, *_ in space["CudaKernel"].modules) == sorted(known) and not cuda_text("no kernels")
    assert all(kernel.text in cuda_text(source) for kernel in known.values())
    # a kernel of a program is compiled from the text with which it was measured
    alone = [module_of(kernel_text(s.template, s.call)).CudaKernel.known for s in steps]
    assert {n: k.source() for one in alone for n, k in one.items()} == {n: k.source() for n, k in known.items()}


@pytest.mark.usefixtures("emulated")
def test_a_search_finds_and_verifies_plans_of_cuda_kernels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """From a graph to a saved program with the choice "cuda"; its verification runs the kernels."""
    import tensor_graphs as tg
    from tensor_graphs.backends import gpu
    from tensor_graphs.backends.cuda.backend import Cuda
    from tensor_graphs.backends.library.torch_cuda import TorchCudaBackend
    from tensor_graphs.backends.program.program import Program
    from tensor_graphs.pipeline.stages import verify_or_retry as accept

    for kind in (TorchCudaBackend, Cuda):
        monkeypatch.setattr(kind, "unavailable", lambda self: "")
    monkeypatch.setattr(gpu, "hardware", lambda: "rehearsal")
    monkeypatch.setattr(accept, "Program", partial(Program, device="cpu"))
    sizes = {"g": (64,), "w": (64, 48), "v": (64, 48), "u": (48, 32)}
    g, w, v, u = (t.param(n, s, "bfloat16") for n, s in sizes.items())
    hidden = c.rms_norm(t.input("x", (1, 64), "bfloat16"), g, eps=1e-6)
    graph = Graph.of(t.matmul(c.silu(t.matmul(hidden, w)) * t.matmul(hidden, v), u), name="mlp")
    rng = np.random.default_rng(0)
    params = {n: (rng.standard_normal(s) / 8).astype(numpy_dtype("bfloat16")) for n, s in sizes.items()}
    program = tg.optimize(graph, params=params, backend="cuda", measure=False, budget=20)
    assert program.report.verification["passed"]
    assert {s.template.backend for s in program.plan.steps if not s.is_view} >= {"nvrtc"}
    program.save(tmp_path / "program")
    text = (tmp_path / "program/kernels.cu").read_text(encoding="utf-8")
    assert text.startswith(CUDA_LIBRARY) and NAME.search(text)


# ---------------------------------------------------------------- golden files
GOLDENS: dict[str, dict[str, int]] = {
    "pointwise": {}, "softmax": {}, "layer_norm": {"tn": 16, "vn": 2}, "gated_vector": {"tn": 8, "vn": 2, "t0": 16, "u0": 2},
    "norm_vector": {"tn": 4, "vn": 4, "t0": 16, "v0": 4, "split": 2, "early": 1}, "transposed": {}, "column_sum": {}, "picked": {},
    "matrix_vector": {"t0": 4, "v0": 8, "un": 2, "ahead": 2},
}  # fmt: skip


def golden_text(name: str) -> str:
    """The text of a kernel in bfloat16, its name without the digest."""
    template = generated(ALL[name]())
    call = replace(call_of(template, "bfloat16"), schedule=GOLDENS[name])
    (launch,) = launches(template, call)
    assert isinstance(launch, CudaLaunch)
    return re.sub(r"_[0-9a-f]{10}\b", f"_{name}", f"// {launch.grid} blocks\n{launch.text}")


@pytest.mark.parametrize("name", GOLDENS)
def test_the_source_is_the_golden_file(name: str, update_golden: bool) -> None:
    text, path = golden_text(name), GOLDEN / f"cuda_{name}.cu"
    if update_golden:
        path.write_text(f"// Generated; see test_cuda_cpp.py.\n{text}", encoding="utf-8")
    assert path.read_text(encoding="utf-8").partition("\n")[2] == text


def test_the_cuda_compiler_takes_it(tmp_path: Path) -> None:
    """By NVRTC where cuda-core is installed, else by nvcc; for the architecture that plans are made for."""
    source = "\n".join([CUDA_LIBRARY, *map(golden_text, GOLDENS)])
    try:
        from cuda.core import Program, ProgramOptions

        assert Program(source, "c++", ProgramOptions(std="c++17", arch="sm_90")).compile("cubin").code[:4] == b"\x7fELF"
    except (ImportError, RuntimeError):
        nvcc = shutil.which("nvcc")
        if nvcc is None:
            pytest.skip("neither NVRTC (cuda-core) nor nvcc is installed")
        file = tmp_path / "kernels.cu"
        file.write_text(source, encoding="utf-8")
        options = ["-std=c++17", "-arch=sm_90", "-cubin", "-Werror", "all-warnings"]
        done = subprocess.run([nvcc, *options, "-o", tmp_path / "kernels.cubin", file], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[:4000]
