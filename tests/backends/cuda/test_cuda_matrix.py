"""Products of few rows on the matrix unit in CUDA C++: fragments, run by threads on the CPU against the
specification."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tensor_graphs
import tensor_graphs.egraph.builders.builders as t
from tensor_graphs.backends.cuda.backend import BACKEND, generated
from tensor_graphs.backends.cuda.emit.kernel import CudaLaunch
from tensor_graphs.backends.cuda.emit.packed_sides import packed_side
from tensor_graphs.backends.generate.call_code import launches
from tensor_graphs.backends.generate.template import GeneratedKernel, template_of
from tensor_graphs.backends.program.helpers.cuda_helpers import CUDA_LIBRARY
from tensor_graphs.egraph.composites import composite_ops as c
from tensor_graphs.egraph.composites import quantized_ops
from tensor_graphs.egraph.ir.tensor import Tensor
from tensor_graphs.extract.model.kernel import Call
from tensor_graphs.models.common import quantization

from .. import kernel_interpreter
from ..cuda_host import compiled, source_of
from ..test_kernel_ir import error, x
from .test_cuda_cpp import TOLERANCE, call_of, check, memory


def _product(rows: int, length: int, columns: int) -> Tensor:
    return t.matmul(x("a", rows, length), x("w", length, columns))


def _gates() -> Tensor:
    a, h = x("a", 12, 64), x("h", 12, 64)
    both = t.concat([a, h], 1)
    g = [t.matmul(both, x(f"w{i}", 128, 32)) for i in range(3)]
    return t.tanh(c.sigmoid(g[0]) * t.tanh(g[1]) + c.relu(g[2]))


def _low_rank() -> Tensor:
    return _product(16, 128, 32) + t.matmul(t.matmul(x("a", 16, 128), x("u", 128, 16)), x("v", 16, 32))


def _normed(rows: int, length: int, columns: int) -> Tensor:
    a = x("a", rows, length)
    scale = t.rsqrt(t.mean(a * a, axis=1, keepdims=True) + 1e-6)
    return t.matmul(a, x("w", length, columns)) * scale


def _packed(rows: int, length: int, columns: int, form: str) -> Tensor:
    """Rows times a quantized matrix, whose columns lie one after the other."""
    size = length if form in ("int8", "fp8") else length // 2
    codes = t.input("w", (columns, size), "int8" if form == "int8" else "uint8")
    scale = t.input("s", (columns, length // quantization.group_of(form, length)))
    return t.matmul(x("a", rows, length), t.transpose(quantization.dequantized(form, codes, scale)))


def _normed_packed(length: int, columns: int, form: str, rows: int = 1) -> Tensor:
    """The norm of each row times a quantized matrix, with an activation."""
    size = length if form == "fp8" else length // 2
    scale = t.input("s", (columns, length // quantization.group_of(form, length)))
    w = t.transpose(quantization.dequantized(form, t.input("w", (columns, size), "uint8"), scale))
    return c.silu(t.matmul(c.rms_norm(x("a", rows, length), x("g", length), eps=1e-6), w))


def _with_zeros(rows: int, length: int, columns: int) -> Tensor:
    """Rows times a matrix of 4-bit codes with a zero point for each group."""
    codes, shape = t.input("w", (columns, length // 2), "uint8"), (columns, length // 128)
    number = quantized_ops.unpack(codes, bits=4, form="unsigned", axis=1, block=16)
    return t.matmul(x("a", rows, length), t.transpose(quantized_ops.dequantize(number, x("s", *shape), x("z", *shape))))


#: name -> (term, weights that are laid out anew, schedules)
CASES: dict[str, tuple[Callable[[], Tensor], tuple[str, ...], list[dict[str, int]]]] = {
    "plain": (lambda: _product(16, 256, 32), ("w",), [
        {"warps": 2, "n": 8, "deep": 1}, {"warps": 4, "n": 16, "deep": 2}, {"warps": 2, "wide": 2, "n": 32, "deep": 2},
        {"warps": 2, "n": 16, "deep": 2, "split": 2, "early": 1}, {"warps": 8, "n": 32}]),
    "residual": (lambda: _product(5, 96, 24) + x("r", 5, 24) * x("b", 24), ("w",), [{"warps": 2, "n": 8}, {"warps": 4, "n": 8, "deep": 2}]),
    "many": (lambda: c.gelu(_product(29, 128, 32)), ("w",), [{"warps": 2, "n": 16, "wide": 2}, {"warps": 4, "n": 8, "split": 2}]),
    "normed": (lambda: _normed(16, 256, 32), ("w",), [
        {"warps": 2, "n": 16, "deep": 2, "split": 2}, {"warps": 2, "n": 32, "wide": 4, "early": 1}]),
    "scaled": (lambda: t.matmul(x("a", 7, 128) * x("g", 128), x("w", 128, 16)), ("w",), [{"warps": 2, "n": 8}]),
    "scaled matrix": (lambda: t.matmul(x("a", 16, 128), t.permute(x("u", 16, 128) * x("g", 128), (1, 0))), (), [{"warps": 2, "n": 8}]),
    "ragged": (lambda: _normed(9, 152, 16), ("w",), [{"warps": 2, "n": 8}, {"warps": 2, "n": 16, "wide": 2}, {"warps": 2, "n": 16, "early": 1, "warm": 1}]),
    "uneven": (lambda: c.relu(_product(16, 128, 75) + x("b", 75)) + x("r", 16, 75), ("w",), [
        {"warps": 2, "n": 8}, {"warps": 2, "n": 32, "wide": 2, "split": 2}, {"warps": 4, "n": 128, "deep": 2, "early": 1}]),
    "uneven normed": (lambda: _normed(5, 72, 67), ("w",), [{"warps": 2, "n": 16}]),
    "gates": (_gates, ("w0", "w1", "w2"), [{"warps": 2, "n": 8, "early": 1, "warm": 1}, {"warps": 2, "n": 16, "wide": 2, "deep": 2}]),
    "int4": (lambda: _packed(16, 1024, 32, "int4"), (), [{"warps": 2, "n": 16, "deep": 2}, {"warps": 4, "n": 8, "split": 2, "early": 1},
        {"warps": 2, "n": 16, "packed": 1}, {"warps": 4, "n": 32, "wide": 2, "packed": 1, "split": 2, "early": 1},
        {"warps": 2, "n": 16, "packed": 1, "ahead": 3}, {"warps": 2, "wide": 2, "n": 32, "packed": 1, "split": 2, "early": 1, "ahead": 1},
        {"warps": 2, "n": 16, "packed": 1, "ahead": 2, "direct": 1}, {"warps": 1, "wide": 2, "n": 32, "packed": 1, "ahead": 2, "joint": 1},
        {"warps": 2, "wide": 2, "n": 32, "packed": 1, "ahead": 1, "direct": 1, "joint": 1}]),
    "int4 of a row": (lambda: _packed(1, 2048, 24, "int4") + x("r", 1, 24), (), [
        {"warps": 2, "n": 8, "deep": 4}, {"warps": 4, "n": 8, "split": 2}, {"warps": 2, "n": 16, "packed": 1}, {"warps": 4, "n": 32, "packed": 1},
        {"warps": 4, "n": 32, "packed": 1, "ahead": 3}, {"warps": 2, "n": 16, "packed": 1, "split": 2, "ahead": 2, "early": 1},
        {"warps": 2, "n": 32, "wide": 2, "packed": 1, "ahead": 2, "direct": 1}, {"warps": 4, "n": 16, "packed": 1, "ahead": 2, "joint": 1}]),
    "int8 of a row": (lambda: _packed(1, 1024, 16, "int8"), (), [
        {"warps": 2, "n": 16, "deep": 2}, {"warps": 2, "n": 16, "packed": 1}, {"warps": 2, "n": 16, "packed": 1, "ahead": 7}]),
    "fp8": (lambda: _packed(5, 1152, 16, "fp8"), (), [
        {"warps": 2, "n": 8}, {"warps": 2, "n": 16, "packed": 1}, {"warps": 4, "n": 16, "packed": 1, "ahead": 2}]),
    "mxfp4": (lambda: _packed(4, 128, 16, "mxfp4"), (), [{"warps": 2, "n": 8, "deep": 2}, {"warps": 2, "n": 16, "packed": 1}]),
    "int4 of a norm": (lambda: _normed_packed(1024, 32, "int4"), (), [
        {"warps": 2, "n": 16, "packed": 1}, {"warps": 4, "n": 32, "packed": 1, "ahead": 1}, {"warps": 2, "n": 16, "packed": 1, "split": 2},
        {"warps": 2, "n": 16, "packed": 1, "split": 2, "ahead": 1, "early": 1}, {"warps": 2, "n": 32, "wide": 2, "packed": 1, "ahead": 2, "direct": 1},
        {"warps": 1, "wide": 2, "n": 32, "packed": 1, "ahead": 2, "joint": 1}]),
    "int4 of norms": (lambda: _normed_packed(512, 32, "int4", rows=11), (), [
        {"warps": 2, "n": 16, "packed": 1}, {"warps": 2, "n": 32, "packed": 1, "ahead": 1, "joint": 1}]),
    "fp8 of a norm": (lambda: _normed_packed(1152, 16, "fp8"), (), [
        {"warps": 2, "n": 16, "packed": 1}, {"warps": 4, "n": 16, "packed": 1, "ahead": 2}]),
    "mxfp4 of a row": (lambda: _packed(1, 1024, 32, "mxfp4"), (), [
        {"warps": 2, "n": 16, "packed": 1, "ahead": 2}, {"warps": 2, "n": 32, "wide": 2, "packed": 1, "ahead": 1, "direct": 1}]),
    "int4 in groups of 64": (lambda: _packed(3, 1088, 40, "int4"), (), [
        {"warps": 2, "n": 16, "packed": 1, "ahead": 2}, {"warps": 2, "n": 32, "packed": 1, "ahead": 1, "direct": 1, "early": 1}]),
    "zero points": (lambda: _with_zeros(9, 1024, 32), (), [
        {"warps": 2, "n": 16, "packed": 1, "ahead": 2}, {"warps": 2, "n": 32, "wide": 2, "packed": 1, "ahead": 1, "early": 1},
        {"warps": 1, "wide": 2, "n": 32, "packed": 1, "ahead": 3, "joint": 1}]),
    "low_rank": (_low_rank, ("w", "u", "v"), [{"warps": 2, "n": 8, "u1": 16}, {"warps": 2, "n": 16, "wide": 2, "u1": 2, "v1": 8}]),
}  # fmt: skip


def made(name: str, dtype: str) -> list[tuple[GeneratedKernel, Call, CudaLaunch]]:
    """The kernels of a case: its own schedules, and the best of those ranked."""
    make, weights, own = CASES[name]
    template = generated(make(), weights)
    call = call_of(template, dtype)
    lowered = template.lower(call)
    assert lowered is not None
    ranked = [s for s in lowered.space if "warps" in s]
    assert ranked
    found = []
    for schedule in [*own, *ranked[:2]]:
        assert BACKEND.emitter.fits(lowered.kernel, lowered.shape, schedule, lowered.cuts)  # type: ignore[attr-defined]
        scheduled = replace(call, schedule=schedule)
        (launch,) = launches(template, scheduled)
        assert isinstance(launch, CudaLaunch)
        found.append((template, scheduled, launch))
    return found


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_products_in_fragments_compute_what_is_specified(dtype: str, tmp_path: Path) -> None:
    some = ("plain", "gates", "int8 of a row", "fp8", "mxfp4")
    found = [one for name in (CASES if dtype == "bfloat16" else some) for one in made(name, dtype)]
    kernels = compiled(source_of({launch.name: launch for *_, launch in found}.values()), tmp_path)
    for template, call, launch in found:
        assert "multiply(" in launch.text
        check(template, call, launch, kernels[launch.name], dtype)


def test_codes_in_shared_memory_are_neither_read_too_early_nor_overwritten_too_early(tmp_path: Path) -> None:
    """Rings of codes, with copies that happen as early as they may; the host's copies else happen as late as they
    may."""
    found = [one for name in CASES for one in made(name, "bfloat16") if "ahead" in one[1].schedule]
    assert len(found) >= 6
    kernels = compiled(source_of([launch for *_, launch in found]), tmp_path, ["AT_ONCE"])
    for template, call, launch in found:
        assert "await_round" in launch.text
        check(template, call, launch, kernels[launch.name], "bfloat16")


def test_rows_are_shared_where_they_are_copied() -> None:
    """A block copies each row once, in one section of its ring more; `joint` needs a ring."""
    template = generated(_packed(16, 1024, 64, "int4"))
    call = call_of(template, "bfloat16")
    lowered = template.lower(call)
    assert lowered is not None
    own, joint = ({"warps": 1, "wide": 4, "n": 64, "packed": 1, "ahead": 2, **more} for more in ({}, {"joint": 1}))
    assert not BACKEND.emitter.fits(  # type: ignore[attr-defined]
        lowered.kernel, lowered.shape, {"warps": 1, "wide": 4, "n": 64, "packed": 1, "joint": 1}, lowered.cuts
    )
    sections = []
    for schedule in (own, joint):
        (launch,) = launches(template, replace(call, schedule=schedule))
        assert isinstance(launch, CudaLaunch)
        found = re.search(r"ring \+ round \* (\d+);", launch.text)
        assert found is not None
        sections.append(int(found[1]))
    assert sections[0] - sections[1] == 3 * 16 * 16  # vectors of the rows of three of four warps
    assert "__syncthreads();" in launch.text.partition("await_round")[2].partition("read_slot")[0]


HELD = {
    "plain": {"w"}, "many": {"w"}, "normed": {"w"}, "ragged": {"w"}, "uneven": {"w"}, "gates": {"w0", "w1", "w2"}, "int4": {"w", "s"},
    "int4 of a row": {"w", "s"}, "int8 of a row": {"w", "s"}, "fp8": {"w", "s"}, "mxfp4": {"w", "s"},
}  # fmt: skip


def test_weights_are_loaded_before_the_wait_for_the_previous_kernel(tmp_path: Path) -> None:
    """The first vectors of matrices or codes, and their scales, if they are weights; rows only after the wait."""
    found = []
    for name, weights in HELD.items():
        for template, call, _ in made(name, "bfloat16"):
            early = {k: v for k, v in call.schedule.items() if k != "warm"} | {"early": 1}
            held = replace(call, schedule=early, constant=frozenset(weights))
            (launch,) = launches(template, held)
            assert isinstance(launch, CudaLaunch)
            head = launch.text.partition("{")[2].partition("await_previous();")[0]
            reads = {n for n in template.operands if re.search(rf"(\+ |read.*\b|\*\(|\b){n}_?(\[| \+)", head)}
            assert reads == weights, (name, early, head)
            found.append((template, held, launch))
            if name.startswith("int"):
                (launch,) = launches(template, replace(held, constant=frozenset()))
                assert "await_previous();" in launch.text.partition("int thread")[0]  # type: ignore[union-attr]
    kernels = compiled(source_of({launch.name: launch for *_, launch in found}.values()), tmp_path)
    for template, call, launch in found:
        check(template, call, launch, kernels[launch.name], "bfloat16")


def test_a_launch_with_much_shared_memory_asks_for_it() -> None:
    """Sums of 16 warps for two matrices fill 48 KB exactly; the flag of the last block lies beside them."""
    scale = t.input("s", (32, 1)), t.input("u", (32, 1))
    w, v = (quantization.dequantized("fp8", t.input(n, (32, 2048), "uint8"), s) for n, s in zip("wv", scale))
    a = x("a", 1, 2048)
    template = generated(c.silu(t.matmul(a, t.transpose(w))) * t.matmul(a, t.transpose(v)))
    call = replace(call_of(template, "bfloat16"), schedule={"warps": 16, "n": 16, "packed": 1, "split": 2})
    (launch,) = launches(template, call)
    assert isinstance(launch, CudaLaunch)
    assert launch.shared_bytes > 48 << 10  # cuda_helpers raises the limit of the function from there on


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("form", [*quantization.FORMS, "zeros"])
def test_every_code_is_converted_to_its_number(form: str, dtype: str, tmp_path: Path) -> None:
    """All bytes in all places of a vector, NaN of 8-bit floats included."""
    template = generated(_with_zeros(2, 512, 32) if form == "zeros" else _packed(2, 512, 32, form))
    call = replace(call_of(template, dtype), schedule={"warps": 2, "n": 16, "packed": 1})
    (launch,) = launches(template, call)
    assert isinstance(launch, CudaLaunch)
    found, where = template.lower(call), memory(template, call)
    assert found is not None
    codes = where["w"].array.reshape(32, -1)
    size = codes.shape[1]
    codes[:] = (
        ((np.arange(size) * 17 + np.arange(32)[:, None] * 8 + np.arange(size) // 256) % 256)
        .astype(np.uint8)
        .view(codes.dtype)
    )
    if form == "fp8":
        codes[1:][(codes[1:] & 127) == 127] = 3  # NaN in the first column only
    want = {n: g.array.astype(np.float64) if g.array.dtype.kind in "fV" else g.array.copy() for n, g in where.items()}
    kernel_interpreter.run(found.kernel, want)
    kernel = compiled(source_of([launch]), tmp_path)[launch.name]
    kernel([where[a].array.ctypes.data for a in launch.args], launch.grid, launch.block)
    got = where["out"].array.astype(np.float64)
    there = ~np.isnan(want["out"])
    assert (np.isnan(got) == ~there).all() and there.all() == (form != "fp8")
    assert error(got[there], want["out"][there]) < TOLERANCE[dtype]


@pytest.mark.parametrize(
    ("index", "known"), [(0, "nibbles"), (1, None), (2, None)], ids=["units of 16", "units of 8", "another table"]
)
def test_codes_are_recognized_by_their_values(index: int, known: str | None) -> None:
    axis_size = 512
    codes = t.input("w", (32, axis_size // 2), "uint8")
    number = quantized_ops.unpack(codes, bits=4, form="unsigned", axis=1, block=8 if index == 1 else 16)
    number = t.sqrt(number) if index == 2 else number
    template = generated(t.matmul(x("a", 1, axis_size), t.transpose(number)))
    lowered = template.lower(call_of(template, "bfloat16"))
    assert lowered is not None
    (e,) = lowered.kernel.reductions
    side = packed_side(lowered.kernel, lowered.shape.dots[e], e.axis)
    assert (side.form.name if side is not None else None) == known
    assert any("packed" in s for s in lowered.space) == (known is not None)


def test_columns_of_one_product_as_several_results(tmp_path: Path) -> None:
    whole = _normed(16, 128, 48)
    parts = [t.slice_axis(whole, 1, 0, 32), t.slice_axis(whole, 1, 32, 48)]
    template = template_of(BACKEND.emitter, parts, ("w",))
    call = replace(call_of(template, "bfloat16"), schedule={"warps": 2, "n": 16, "deep": 2})
    (launch,) = launches(template, call)
    assert isinstance(launch, CudaLaunch)
    check(template, call, launch, compiled(f"{CUDA_LIBRARY}\n{launch.text}", tmp_path)[launch.name], "bfloat16")


@pytest.mark.parametrize(
    ("root", "weights", "dtype"),
    [(_product(16, 64, 32), (), "bfloat16"), (_product(16, 64, 32), ("w",), "float32"), (_product(16, 60, 32), ("w",), "bfloat16"),
     (_product(48, 64, 32), ("w",), "bfloat16")],
    ids=["rows of columns", "float32", "odd lengths", "many rows"],
)  # fmt: skip
def test_what_has_no_fragments_is_left_to_others(root: Tensor, weights: tuple[str, ...], dtype: str) -> None:
    template = generated(root, weights)
    assert template.lower(call_of(template, dtype)) is None


def _scores() -> Tensor:
    return t.matmul(x("q", 1, 2, 2, 1, 16), t.permute(x("k", 1, 2, 1, 32, 16), (0, 1, 2, 4, 3)))


def _normed_scores() -> Tensor:
    a = x("a", 1, 2, 2, 1, 16)
    scale = t.rsqrt(t.mean(a * a, axis=4, keepdims=True) + 1e-6)
    return t.matmul(c.relu(a * scale), t.permute(x("k", 1, 2, 1, 32, 16), (0, 1, 2, 4, 3)))


@pytest.mark.parametrize("make", [lambda: c.softmax(_scores(), axis=4), _normed_scores], ids=["softmax", "norm inside"])
def test_every_ranked_schedule_can_be_emitted(make: Callable[[], Tensor]) -> None:
    template = generated(make())
    call = call_of(template, "bfloat16")
    lowered = template.lower(call)
    assert lowered is not None and lowered.space
    for schedule in lowered.space:
        assert launches(template, replace(call, schedule=schedule)), schedule


def test_instructions_of_whole_warps_are_volatile() -> None:
    """The compiler may copy other assembly into both branches of a condition that divides a warp, where instructions
    that all lanes execute together wait for ever."""
    folder = Path(tensor_graphs.__file__).parent / "backends"
    texts = [p.read_text(encoding="utf-8") for p in folder.resolve().rglob("*.cuh")]
    found = [line for text in texts for line in re.findall(r"asm\b(.*?\".*?)\"", text)]
    assert len(found) > 50 and any("mma.sync" in line for line in found)
    assert not [line for line in found if re.search(r"\.(sync|aligned)\b", line) and "volatile" not in line]
