"""Fused QKV projections with rotary embeddings, written into caches: interleaved outputs, rotate-half splits and
data-dependent indices, in the kernel IR, in both GPU emitters, and in programs that update states in place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensor_graphs.egraph.builders.builders as t
from tensor_graphs.backends.cuda import backend as cuda_cpp
from tensor_graphs.backends.generate.kernel_text import kernel_text, module_of
from tensor_graphs.backends.generate.template import GeneratedKernel
from tensor_graphs.backends.ir import kernel as kir
from tensor_graphs.backends.ir.tiling import shape_of
from tensor_graphs.backends.ir.unfusable import Unfusable
from tensor_graphs.backends.lowering.lower import kernel_of
from tensor_graphs.backends.program.emit import memory_plan as memory
from tensor_graphs.backends.program.program import Program
from tensor_graphs.backends.program.saved_program import load_program
from tensor_graphs.backends.registry import backend
from tensor_graphs.backends.runtime.views import view_strides
from tensor_graphs.backends.triton.backend import generated
from tensor_graphs.egraph.composites import composite_ops as c
from tensor_graphs.egraph.evaluate.interpret import evaluate
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.ir.tensor import Tensor, topological
from tensor_graphs.egraph.ops.ops import Type
from tensor_graphs.egraph.saturate.saturate import Limits, saturate_block
from tensor_graphs.egraph.saturate.sessions import InProcess
from tensor_graphs.egraph.simplify.simplify import simplify
from tensor_graphs.extract.candidates.candidates import candidate_hypergraph
from tensor_graphs.extract.candidates.hypergraph import Hypergraph
from tensor_graphs.extract.model.kernel import Call, Operand, contiguous
from tensor_graphs.extract.model.plan import Plan
from tensor_graphs.extract.model.pricing import Priced, PricerBase
from tensor_graphs.extract.model.work import call_work
from tensor_graphs.extract.search.plan import plan_of
from tensor_graphs.extract.search.search import search
from tensor_graphs.models.common import quantization
from tensor_graphs.rules import ALL
from tensor_graphs.verification.comparison import relative_error

from .. import kernel_interpreter
from ..transformations import transformations
from .test_cuda_cpp import _compiled_alone
from .test_cuda_cpp import memory as cuda_memory

B, T, H, K, D, L, W = 2, 3, 4, 2, 16, 32, 64  # samples, tokens, heads of queries, of keys, their width, places, hidden


def x(name: str, *shape: int) -> Tensor:
    return t.input(name, shape)


def heads(y: Tensor, before: int, count: int) -> Tensor:
    part = t.slice_axis(y, 2, before * D, (before + count) * D)
    return t.permute(t.reshape(part, (y.shape[0], y.shape[1], count, D)), (0, 2, 1, 3))


def kept(name: str, values: Tensor, places: Tensor) -> Tensor:
    b, k, n, d = values.shape
    spot = t.broadcast_to(t.reshape(places, (1, 1, n, 1)), values.shape)
    return t.scatter_elements(x(name, b, k, L, d), spot, values, 2)  # type: ignore[arg-type]


def interleaved(y: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions over neighbours: (a, b) becomes (a cos - b sin, b cos + a sin)."""
    pairs = t.reshape(y, (*y.shape[:-1], D // 2, 2))
    a, b = t.slice_axis(pairs, -1, 0, 1), t.slice_axis(pairs, -1, 1, 2)
    turned = t.reshape(t.concat([-b, a], -1), y.shape)
    return y * cos + turned * sin


def step(
    tokens: int = T, samples: int = B, turn: Callable[..., Tensor] = c.rope, own: int = H, kv: int = K,
    norms: bool = False, stored: bool = False,
) -> list[Tensor]:  # fmt: skip
    """Rotated queries, and caches that keys and values have been written into; with norms of queries and keys; from a
    product that is stored."""
    h = c.rms_norm(x("x", samples, tokens, W), x("g", W), eps=1e-6)
    width = (own + 2 * kv) * D
    y = x("y", samples, tokens, width) if stored else t.matmul(h, x("w", W, width))
    cos, sin, places = x("cos", 1, 1, tokens, D), x("sin", 1, 1, tokens, D), t.input("at", (tokens,), "int64")
    q, k, v = (heads(y, n, count) for n, count in ((0, own), (own, kv), (own + kv, kv)))
    if norms:
        q, k = (c.rms_norm(part, x(gain, D), eps=1e-6) for part, gain in ((q, "gq"), (k, "gk")))
    return [turn(q, cos, sin), kept("keys", turn(k, cos, sin), places), kept("values", v, places)]


def packed(form: str) -> list[Tensor]:
    """The same of one row and a quantized weight [columns, rows]."""
    rows, width = 1024, (H + 2 * K) * D
    codes = t.input("w", (width, rows if form == "fp8" else rows // 2), "uint8")
    scale = x("s", width, rows // quantization.group_of(form, rows))
    y = t.matmul(x("x", 1, 1, rows), t.transpose(quantization.dequantized(form, codes, scale)))
    cos, sin, places = x("cos", 1, 1, 1, D), x("sin", 1, 1, 1, D), t.input("at", (1,), "int64")
    q, k, v = (heads(y, n, count) for n, count in ((0, H), (H, K), (H + K, K)))
    return [c.rope(q, cos, sin), kept("keys", c.rope(k, cos, sin), places), kept("values", v, places)]


CASES: dict[str, Callable[[], list[Tensor]]] = {
    "int4": lambda: packed("int4"), "fp8": lambda: packed("fp8"),
    "prefill": step, "one token": lambda: step(1), "one row": lambda: step(1, 1),
    "one head of keys": lambda: step(1, kv=1), "one head of keys, prefill": lambda: step(kv=1),
    "as many heads of keys": lambda: step(1, kv=H), "as many, prefill": lambda: step(kv=H), "one head": lambda: step(1, 1, own=1, kv=1),
    "norms": lambda: step(1, norms=True), "stored": lambda: step(norms=True, stored=True),
    "stored, one head of keys": lambda: step(1, 1, kv=1, norms=True, stored=True),
    "stored, without norms": lambda: step(stored=True),
    "neighbours": lambda: step(turn=interleaved)[:1],
    "keys alone": lambda: step()[1:2],
    "rotated": lambda: [c.rope(x("q", B, H, T, D), x("cos", 1, 1, T, D), x("sin", 1, 1, T, D))],
    "a known place": lambda: [t.scatter_elements(x("a", 4, 9), t.full((4, 1), 5, "int64"), t.tanh(x("b", 4, 1)), 1)],
    "rows": lambda: [t.scatter_elements(x("a", 9, 6), t.broadcast_to(t.reshape(t.input("at", (3,), "int64"), (3, 1)), (3, 6)), c.softmax(x("b", 3, 6), axis=1), 0)],
    "side by side": lambda: [t.tanh(x("a", 4, 6)), t.exp(x("b", 4, 10)), x("c", 4, 3) * 2.0],
}  # fmt: skip


def leaves(roots: list[Tensor]) -> dict[str, Tensor]:
    return {str(n.attr("name")): n for n in topological(roots) if n.op == "input"}


def names(roots: list[Tensor]) -> list[str]:
    return [f"out{n}" if n else "out" for n in range(len(roots))]


def values(roots: list[Tensor], dtype: str = "float32") -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    drawn = {
        "int64": lambda shape: rng.permutation(8)[: shape[0]],
        "uint8": lambda shape: rng.integers(0, 120, shape).astype(np.uint8),
        "float32": lambda shape: rng.standard_normal(shape).astype(dtype),
    }
    return {n: drawn[leaf.dtype](leaf.shape) for n, leaf in leaves(roots).items()}


def kernel(roots: list[Tensor]) -> kir.Kernel:
    known = leaves(roots)
    buffers = {n: kir.Buffer(k.dtype, tuple(k.shape), contiguous(k.shape)) for n, k in {**known, **dict(zip(names(roots), roots))}.items()}  # type: ignore[arg-type]  # fmt: skip
    return kernel_of(roots, {leaf: n for n, leaf in known.items()}, buffers)


def base(root: Tensor) -> str:
    return str(root.args[0].attr("name")) if root.op == "scatter_elements" else ""


# ---------------------------------------------------------------- the IR
@pytest.mark.parametrize("name", CASES)
def test_every_result_means_what_its_term_means(name: str) -> None:
    roots = CASES[name]()
    one, given = kernel(roots), values(roots)
    held = {n: v.reshape(-1).astype(np.float64 if v.dtype.kind == "f" else v.dtype) for n, v in given.items()}
    for n, root in zip(names(roots), roots):
        held[n] = held[base(root)].copy() if base(root) else np.full(root.type.nbytes // 4, np.nan)
    kernel_interpreter.run(one, held)
    for n, want in zip(names(roots), evaluate(roots, given, float64=True)):
        np.testing.assert_allclose(held[n].reshape(want.shape), want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["prefill", "one token", "one row", "neighbours", "keys alone", "one head of keys", "fp8",
                                  "one head of keys, prefill", "as many heads of keys", "as many, prefill", "one head"])  # fmt: skip
def test_halves_share_two_products(name: str) -> None:
    """As many as there are columns to read, though every rotated element needs two of them; and none divides an
    index."""
    one = kernel(CASES[name]())
    assert len(shape_of(one).dots) == 2
    assert not any(d for e in one.exprs if e.op == "load" for d in e.value[1].divisions())


def test_what_is_written_into_is_not_read() -> None:
    a, at = x("a", 4, 9), t.input("at", (4, 1), "int64")
    with pytest.raises(Unfusable, match="buffer that it scatters into"):
        kernel([t.scatter_elements(a, at, t.sum(a, axis=1, keepdims=True), 1)])
    with pytest.raises(Unfusable, match="not updated in place"):
        kernel([t.scatter_elements(a, at, x("b", 4, 1), 1, "max")])


def test_places_count_from_the_end_and_none_beyond_is_written() -> None:
    a, at = x("a", 9, 6), t.broadcast_to(t.reshape(t.input("at", (3,), "int64"), (3, 1)), (3, 6))
    roots = [t.scatter_elements(a, at, x("b", 3, 6), 0)]
    given = values(roots) | {"at": np.array([-2, 4, 0])}
    held = {n: v.reshape(-1).astype(v.dtype) for n, v in given.items()}
    held["out"] = held["a"].copy()
    kernel_interpreter.run(kernel(roots), held)
    np.testing.assert_array_equal(held["out"].reshape(9, 6), evaluate(roots, given)[0])
    held |= {"at": np.array([9, 4, -10]), "out": held["a"].copy()}
    kernel_interpreter.run(kernel(roots), held)
    np.testing.assert_array_equal(np.delete(held["out"].reshape(9, 6), 4, 0), np.delete(given["a"], 4, 0))


# ---------------------------------------------------------------- Triton and CUDA C++
def call_of(template: GeneratedKernel, dtype: str) -> Call:
    def operand(n: Tensor) -> Operand:
        return Operand(Type(n.shape, dtype if n.dtype == "float32" else n.dtype), contiguous(n.shape))  # type: ignore[arg-type]

    kinds = {n: operand(leaf) for n, leaf in leaves(template.roots).items()}
    first, *more = map(operand, template.roots)
    return Call({o: kinds[o] for o in template.operands}, first, {}, more=tuple(more))


TILES = {"m": 16, "n": 32, "k0": 16, "warps": 4, "stages": 2}
JOINED = {"split": 2, "join": 1}


@pytest.mark.parametrize(("name", "more", "inplace"), [
    ("prefill", {}, False), ("one token", {}, True), ("prefill", JOINED, True), ("keys alone", {"split": 2}, False),
    ("one head of keys", JOINED, True), ("as many heads of keys", {}, True),
], ids=["apart", "in place", "joined by the last", "split", "one head of keys", "as many heads of keys"])  # fmt: skip
def test_schedules_compute_the_same_in_the_interpreter(name: str, more: dict[str, int], inplace: bool) -> None:
    interpreted(name, TILES | more, inplace)


def interpreted(name: str, schedule: dict[str, int], inplace: bool) -> None:
    """Every output of a case in Triton's interpreter, in 16 bits."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("triton")
    roots = CASES[name]()
    template = generated(roots)
    call = replace(call_of(template, "float16"), schedule=schedule)
    given = values(roots, "float16")
    want = evaluate(
        roots, {n: v.astype(np.float32) if v.dtype.kind == "f" else v for n, v in given.items()}, float64=True
    )
    tensors = {n: torch.from_numpy(v) for n, v in given.items()}
    outs = [tensors[base(r)] if base(r) and inplace else torch.full(tuple(r.shape), float("nan"), dtype=torch.float16) for r in roots]  # fmt: skip
    scratch = torch.full((template.scratch(call),), 255, dtype=torch.uint8)  # type: ignore[misc]
    module_of(kernel_text(template, call)).run(*(tensors[o] for o in template.operands), *outs, scratch)
    for out, exact in zip(outs, want):
        assert relative_error(out.double().numpy(), exact) < 2e-3


@pytest.mark.parametrize("kind", ["in memory", "up to a place"])
@pytest.mark.parametrize("more", [{}, {"split": 4}, JOINED], ids=["whole", "split", "joined by the last"])
def test_parts_of_a_cache_that_a_mask_hides_add_nothing(kind: str, more: dict[str, int]) -> None:
    """Whole parts of a row, and all of its tiles: their maximum is -inf. What lies behind a place is not even read."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("triton")
    q, k, v = x("q", 1, 1, H, 1, D), x("k", 1, 1, 1, 64, D), x("v", 1, 1, 1, 64, D)
    seen = t.le(t.iota((1, 64), 1), t.reshape(t.input("at", (1,), "int64"), (1, 1)))
    mask = t.reshape(t.where(seen, t.full((1, 1), 0.0), t.full((1, 1), -np.inf)), (1, 1, 1, 1, 64))
    mask = x("mask", 1, 1, 1, 1, 64) if kind == "in memory" else mask
    root = c.masked_attention(q, k, v, mask, scale=D**-0.5)
    template = generated([root])
    call = replace(call_of(template, "float16"), schedule={**TILES, "n": 16, "k1": 16, **more})
    for at in (0, 20, np.iinfo(np.int64).max):
        given = values([q, k, v], "float16") | {"at": np.array([at])}
        given["mask"] = np.where(np.arange(64) <= at, 0, -np.inf).astype(np.float16).reshape(1, 1, 1, 1, 64)
        (want,) = evaluate([root], {n: given[n].astype("f4") if n != "at" else given[n] for n in leaves([root])}, float64=True)  # fmt: skip
        if kind == "up to a place":
            given["k"][..., min(at, 64) // 16 * 16 + 16 :, :] = given["v"][..., min(at, 64) // 16 * 16 + 16 :, :] = (
                np.nan
            )
        out = torch.full(tuple(root.shape), float("nan"), dtype=torch.float16)
        scratch = torch.full((template.scratch(call),), 255, dtype=torch.uint8)  # type: ignore[misc]
        operands = [torch.from_numpy(given[o]) for o in template.operands]
        module_of(kernel_text(template, call)).run(*operands, out, scratch)
        assert relative_error(out.double().numpy(), want) < 2e-3


@pytest.mark.parametrize("name", ["stored", "stored, one head of keys", "stored, without norms"])
def test_what_products_stored_is_turned_in_one_kernel(name: str) -> None:
    """Norms, rotations and caches over queries, keys and values as a product left them: the first schedule and the
    last."""
    template = generated(CASES[name]())
    space = template.space(call_of(template, "float16"))  # type: ignore[misc]
    for schedule in (space[0], space[-1]):
        interpreted(name, dict(schedule), True)


@pytest.mark.parametrize(("name", "dtype"), [("one row", "bfloat16"), ("prefill", "bfloat16"), ("rows", "float32"), ("one row", "float32"), ("one head", "bfloat16"), ("int4", "bfloat16"), ("fp8", "bfloat16")])  # fmt: skip
def test_kernels_of_cuda_write_into_their_places(name: str, dtype: str, tmp_path: Path) -> None:
    roots = CASES[name]()
    turned = [n for n in ("w",) if n in leaves(roots) and name == "prefill"]
    template = cuda_cpp.generated(roots, turned)
    call = call_of(template, dtype)
    space = list(template.space(call))  # type: ignore[misc]
    found = template.lower(call)
    assert found is not None and any("warps" in s for s in space) == (name in ("prefill", "int4", "fp8"))
    assert any("packed" in s for s in space) == (name in ("int4", "fp8"))
    for schedule in (space[0], space[-1]):
        one = replace(call, schedule=schedule)
        launch, compiled = _compiled_alone(template, one, tmp_path)
        where = cuda_memory(template, one)
        if "at" in where:
            where["at"].array[:] = np.arange(where["at"].array.size)[::-1] + 2
        for n, root in zip(names(roots), roots):
            if base(root):
                where[n].array[:] = where[base(root)].array
        want = {
            n: g.array.astype(np.float64) if g.array.dtype.kind in "fV" else g.array.copy() for n, g in where.items()
        }
        kernel_interpreter.run(found.kernel, want)
        compiled([where[a].array.ctypes.data for a in launch.args], launch.grid, launch.block)
        assert all(g.intact for g in where.values())
        for n in names(roots):
            assert relative_error(where[n].array.astype(np.float64), want[n]) < (2e-2 if dtype == "bfloat16" else 1e-5)


# ---------------------------------------------------------------- work and measuring
def test_what_is_written_counts_and_not_where_it_goes() -> None:
    template = generated(step())
    call = call_of(template, "float32")
    read = sum(o.type.nbytes for n, o in call.operands.items() if n not in ("keys", "values"))
    assert call_work(template, call)[1] == read + 4 * (B * H * T * D + 2 * B * K * T * D)


def test_measuring_writes_where_values_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checked beside what it is written into, timed in its place; inputs stay what they were."""
    pytest.importorskip("torch")
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    from tensor_graphs.backends.tuning import gpu_bench, result_check
    from tensor_graphs.backends.tuning.gpu_device import device_of

    template = generated(CASES["keys alone"]())
    call = replace(call_of(template, "float32"), schedule=TILES)
    bench = gpu_bench.Bench(device_of("cpu"), template.pattern, call)
    text = kernel_text(template, call)
    assert bench.bases == {0: "keys"} and bench.attempt(0, bench.loaded(text))["accuracy"]["rel_fro"] < 1e-5
    assert bench.measure(0)["accuracy"]["rel_fro"] < 1e-5 and len({s.outputs[0].data_ptr() for s in bench.sets}) == 1
    elsewhere = replace(text, text=text.text.replace("* 16, ", "* 16 + 16, "))
    with pytest.raises(result_check.Wrong):
        bench.attempt(1, bench.loaded(elsewhere))


def test_kernels_say_what_they_owe_their_form_to() -> None:
    template = generated(step())
    call = call_of(template, "float16")
    assert transformations(template, call) == ("DEFER", "HALVES")
    assert transformations(template, replace(call, schedule=TILES | JOINED)) == ("DEFER", "HALVES", "SPLIT")
    rows = generated(c.softmax(x("a", 20, 48), axis=1))
    assert transformations(rows, call_of(rows, "float16")) == ("ROLL",)


# ---------------------------------------------------------------- programs
class Cheap(PricerBase):
    """Bytes and a launch, so that fewer kernels are cheaper."""

    def price(self, found: Any) -> list[Priced]:
        costs = [call_work(k.template, k.call)[1] * 1e-6 + 1.0 for k in found]
        return [Priced(us, us, us, "bound") for us in costs]


def decode(
    kv: int = K, norms: bool = False, biases: bool = False, deep: bool = False
) -> tuple[Graph, dict[str, np.ndarray]]:
    """A step of decoding as it is written: three products, rotations, caches as states, attention over them; `deep`: of
    a stream that a layer before has added to, places beyond the present one hidden."""
    a, places = t.input("a", (B, 1, W)), t.input("at", (1,), "int64")
    cos, sin = t.input("cos", (1, 1, 1, D)), t.input("sin", (1, 1, 1, D))
    stream = a + t.matmul(a, t.param("wp", (W, W))) if deep else a
    h = c.rms_norm(stream, t.param("g", (W,)), eps=1e-6)

    def part(name: str, count: int) -> Tensor:
        y = t.matmul(h, t.param(f"w{name}", (W, count * D)))
        y = t.reshape(y + t.param(f"b{name}", (count * D,)) if biases else y, (B, 1, count, D))
        normed = norms and name != "v"
        return t.permute(c.rms_norm(y, t.param(f"g{name}", (D,)), eps=1e-6) if normed else y, (0, 2, 1, 3))

    q, k, v = (part(name, count) for name, count in (("q", H), ("k", kv), ("v", kv)))
    spot = t.broadcast_to(t.reshape(places, (1, 1, 1, 1)), (B, kv, 1, D))
    caches = [t.state(n, (B, kv, L, D)) for n in ("keys", "values")]
    keys, seen = (t.scatter_elements(s, spot, y, 2) for s, y in zip(caches, (c.rope(k, cos, sin), v)))
    grouped = t.reshape(c.rope(q, cos, sin), (B, kv, H // kv, 1, D))
    operands = [grouped, *(t.reshape(s, (B, kv, 1, L, D)) for s in (keys, seen))]
    mask = t.le(t.reshape(t.iota((L,), 0), (1, L)), t.reshape(places, (1, 1)))
    hidden = t.reshape(t.where(mask, t.full((1, 1), 0.0), t.full((1, 1), -np.inf)), (1, 1, 1, 1, L))
    some = t.reshape(t.max(mask, axis=-1, keepdims=True), (1, 1, 1, 1, 1))
    out = (
        t.where(some, c.masked_attention(*operands, hidden, scale=D**-0.5), t.full((1,) * 5, 0.0))
        if deep
        else c.attention(*operands, scale=D**-0.5)
    )
    outputs = {"out": out} | ({"stream": stream} if deep else {})
    graph = Graph.of(outputs, updates={"keys": keys, "values": seen}, inputs=[a, cos, sin, places], name="decode")
    rng = np.random.default_rng(0)
    params = {str(n.attr("name")): rng.standard_normal(n.shape).astype(np.float32) for n in graph.leaves("param")}
    given = {n: rng.standard_normal(s).astype(np.float32) for n, s in (("a", (B, 1, W)), ("cos", (1, 1, 1, D)), ("sin", (1, 1, 1, D)))}  # fmt: skip
    return replace(graph, params=params), given


def hypergraph(graph: Graph) -> Hypergraph:
    view = saturate_block(graph, ALL, Limits(iterations=4), session=InProcess())
    return candidate_hypergraph(view, [backend("triton"), backend("torch_cuda")], view_strides)


def planned(graph: Graph) -> Plan:
    return plan_of(search(hypergraph(graph), Cheap()), graph)


def right(program: Program, graph: Graph, given: dict[str, np.ndarray], places: tuple[int, ...]) -> None:
    """Results and states after calls at some places."""
    held = {n.attr("name"): np.zeros(n.shape, np.float32) for n in graph.leaves("state")}  # type: ignore[arg-type]
    for place in places:
        at = np.array([place])
        found = program(**given, at=at)
        values = evaluate(graph, {**given, **held, "at": at}, params=graph.params, float64=True)
        assert all(relative_error(y, want) < 1e-5 for y, want in zip(found.values(), values))
        held = dict(zip(graph.updates, values[len(found) :]))
        assert all(relative_error(program.get_state(n), v) < 1e-5 for n, v in held.items())


def test_a_step_of_decoding_with_one_head_of_keys_and_norms_has_two_kernels() -> None:
    """What a product stored may become the same three values as
    well."""
    pytest.importorskip("torch")
    pytest.importorskip("triton")
    graph, given = decode(kv=1, norms=True)
    kernels = hypergraph(graph)
    plan = plan_of(search(kernels, Cheap()), graph)
    assert sorted(len(s.outputs) for s in plan.steps if not s.is_view) == [1, 3]
    assert any(len(k.outputs) == 3 and "matmul" not in k.template.pattern for k in kernels.candidates)
    right(Program(plan, device="cpu"), graph, given, (3, 17))


def test_a_deep_step_with_a_mask_is_three_kernels() -> None:
    """The stream; all up to the caches, the norm included, though what reads least reads one that another kernel makes;
    attention, which computes the mask where it is needed and asks the bound alone whether it shows anything."""
    pytest.importorskip("torch")
    pytest.importorskip("triton")
    graph, given = decode(deep=True)
    graph = simplify(graph)
    kernels = hypergraph(graph)
    made = [k.template.pattern for k in kernels.candidates if len(k.outputs) == 3]
    assert any("scatter" in p and "matmul" in p and ("mean" in p or "rms_norm" in p) for p in made)
    plan = plan_of(search(kernels, Cheap()), graph)
    assert len([s for s in plan.steps if not s.is_view]) == 3
    right(Program(plan, device="cpu"), graph, given, (3, 17))


def test_a_step_of_decoding_is_two_kernels(tmp_path: Path) -> None:
    """One for all up to the caches, written where they lie, and attention; saved, loaded, and right at every call."""
    pytest.importorskip("torch")
    pytest.importorskip("triton")
    graph, given = decode(kv=H, biases=True)
    plan = planned(graph)
    steps = [s for s in plan.steps if not s.is_view]
    assert sorted(len(s.outputs) for s in steps) == [1, 3]
    assert len(memory.layout(plan).pinned) == 2
    program = Program(plan, device="cpu")
    program.save(tmp_path / "p")
    for one in (program, load_program(tmp_path / "p", device="cpu")):
        right(one, graph, given, (3, 4, 17))
    assert "carried(" not in program.source.partition("def launch()")[2]


def test_places_are_drawn_where_a_mask_shows_most() -> None:
    """A kernel that ends at a place is timed with the last one; indices of tables and caches stay below their sizes."""
    from tensor_graphs.backends.tuning.gpu_operands import operand_roles

    at, picks = t.param("at", (1,), "int64"), t.param("i", (1,), "int64")
    seen = t.le(
        t.reshape(t.iota((9,), 0), (1, 9)), t.reshape(at + t.gather(t.param("table", (4,), "int64"), picks), (1, 1))
    )
    found = operand_roles([t.where(seen, t.param("x", (1, 9)), t.full((1, 9), 0.0))])
    assert (found["at"].bound, found["at"].last) == (9, True)
    assert (found["i"].bound, found["i"].last) == (4, False)


def test_a_limited_place_is_drawn_at_its_limit_also_where_a_row_is_written() -> None:
    """Decoders limit the place to the cache: kernels were once timed with the first few positions visible."""
    from tensor_graphs.backends.tuning.gpu_operands import draw, operand_roles

    at = t.param("at", (1,), "int64")
    place = t.reshape(t.maximum(t.minimum(at, 11), 0), (1, 1))
    cache, row = t.param("cache", (1, 16)), t.param("row", (1, 1))
    positions = t.reshape(t.iota((16,), 0), (1, 16))
    written = t.where(t.lt(place, positions), t.scatter_elements(cache, place, row, 1), 0.0)
    ring = t.where(t.le(place - t.mod(place - positions + 16, 16), place - 8), cache, 0.0)
    for root in (written, ring):
        found = operand_roles([root])["at"]
        assert (found.bound, found.last, found.distinct) == (12, True, False)
    pytest.importorskip("torch")
    assert draw("at", Operand(at.type, (1,)), found, "cpu").item() == 11
    several = t.scatter_elements(cache, t.reshape(t.param("to", (4,), "int64"), (1, 4)), t.param("rows", (1, 4)), 1)
    assert operand_roles([several])["to"].distinct


def test_what_a_huge_number_multiplies_says_yes_or_no() -> None:
    """Other numbers would make scores infinite, and right kernels of attention with a mask of tokens seem wrong."""
    from tensor_graphs.backends.tuning.gpu_operands import operand_roles

    keep = t.reshape(t.cast(t.param("keep", (2, 9), "int64"), "float32"), (2, 1, 9))
    scores = t.param("x", (2, 4, 9)) + (1.0 - keep) * float(np.finfo(np.float32).min)
    assert operand_roles([c.softmax(scores, axis=2)])["keep"].bound == 2
    assert operand_roles([c.softmax(keep * -3.0, axis=2)])["keep"].bound > 2


def test_statistics_are_drawn_as_large_as_what_is_made_of_them_wants() -> None:
    """Factors of rows and columns are near one: a softmax of their products shows no more rounding than one of real
    queries does."""
    from tensor_graphs.backends.tuning.gpu_operands import draw, operand_roles

    q, k, squares = t.param("q", (4, 20, 64)), t.param("k", (4, 64, 20)), t.param("squares", (4, 20, 1))
    normed = q / t.sqrt(squares * (1 / 64) + 1e-6) * t.reshape(t.param("gain", (64,)), (1, 1, 64))
    found = operand_roles([c.softmax(t.matmul(normed, k) * 0.125, axis=2)])
    assert (found["q"].near, found["k"].near, found["gain"].near) == (0, 0, 1)
    assert found["squares"].near == pytest.approx(64)
    pytest.importorskip("torch")
    drawn = draw("squares", Operand(squares.type, (20, 1, 1)), found["squares"], "cpu")
    assert 32 <= drawn.min() < 40 < 88 < drawn.max() <= 96
