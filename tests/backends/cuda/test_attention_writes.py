"""Attention of a decode step that writes the token's row into keys and values which it reads: kernel IR, CUDA C++ run
on the CPU, fusion groups, memory plan."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensor_graphs.egraph.builders.builders as t
from tensor_graphs.backends.cuda.backend import BACKEND, generated
from tensor_graphs.backends.cuda.emit.spelling import CudaLaunch
from tensor_graphs.backends.generate.call_code import launches
from tensor_graphs.backends.ir import kernel as kir
from tensor_graphs.backends.ir.unfusable import Unfusable
from tensor_graphs.backends.lowering.lower import kernel_of
from tensor_graphs.backends.machine import of_key, using_machine
from tensor_graphs.backends.program.emit.memory_plan import layout, roots
from tensor_graphs.backends.program.launch.emission import emit_for
from tensor_graphs.backends.program.launch.launching import HELD, plan_for_launching
from tensor_graphs.backends.registry import backend
from tensor_graphs.backends.runtime.views import view_strides
from tensor_graphs.backends.tuning.gpu_bench import Bench
from tensor_graphs.backends.tuning.gpu_device import device_of
from tensor_graphs.egraph.composites import composite_ops as c
from tensor_graphs.egraph.evaluate.interpret import evaluate
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.ir.tensor import Tensor, topological
from tensor_graphs.egraph.saturate.saturate import Limits, saturate_block
from tensor_graphs.egraph.saturate.sessions import InProcess
from tensor_graphs.egraph.simplify.simplify import simplify
from tensor_graphs.extract.candidates.candidates import candidate_hypergraph
from tensor_graphs.extract.model.kernel import contiguous
from tensor_graphs.extract.model.pricing import Priced
from tensor_graphs.extract.model.work import call_work
from tensor_graphs.extract.search.plan import plan_of
from tensor_graphs.extract.search.search import search
from tensor_graphs.rules import ALL

from .. import kernel_interpreter
from ..cuda_host import compiled, source_of
from ..test_kernel_ir import error, x
from .test_clustered_attention import schedule
from .test_cuda_cpp import TOLERANCE, call_of, memory
from .test_few_row_attention import attention
from .test_fused_qkv import Cheap


def writing(
    room: int, head: int, heads: int = 4, groups: int = 1, *, batch: int = 1, norm: bool = False, window: int = 0,
    angles: bool = False,
) -> list[Tensor]:  # fmt: skip
    """A decode step's attention, and the caches with the token's rows, all from one product's result; `window`: the
    caches are rings; `angles`: sines and cosines of the position are part of it."""
    widths = (groups * heads * head, groups * head, groups * head)
    q, k, v = (t.reshape(p, (batch, groups, -1, head)) for p in t.split(x("x", batch, 1, sum(widths)), widths, -1))
    at = t.reshape(t.input("at", (batch,), "int64"), (batch, 1, 1, 1))
    turns = [x("cos", 1, 1, 1, head), x("sin", 1, 1, 1, head)]
    if angles:
        turn = t.cast(at, "float32") * x("waves", 1, 1, 1, head)
        turns = [t.cos(turn), t.sin(turn)]
    q, k = (c.rope(c.rms_norm(p, x(gain, head), eps=1e-6) if norm else p, *turns) for p, gain in ((q, "gq"), (k, "gk")))
    place = t.broadcast_to(t.mod(at, room) if window else at, k.shape)
    keys, values = (
        t.scatter_elements(x(n, batch, groups, room, head), place, row, 2) for n, row in (("k", k), ("v", v))
    )
    held = t.iota((1, 1, 1, room), 3)
    if window:
        held = at - t.mod(at - held + room, room)
    hidden = t.gt(held, at)
    if window:
        hidden = t.logical_or(t.logical_or(hidden, t.le(held, at - window)), t.lt(held, 0))
    mask = t.where(hidden, t.full((1,) * 4, float("-inf")), t.full((1,) * 4, 0.0))
    return [c.masked_attention(q, keys, values, mask, scale=head**-0.5), keys, values]


CASES = {
    "grouped": (lambda: writing(64, 64, groups=2), [
        schedule(4, 1, 1, 1), schedule(2, 2, 1, 1, early=1), schedule(1, 1, 1, 2), schedule(1, 1, 1, 1, seen=1), schedule(2, 1, 1, 1)]),
    "ring with norms": (lambda: writing(96, 256, norm=True, window=40), [schedule(2, 3, 4, 1, early=1), schedule(2, 2, 4, 1)]),
    "batch": (lambda: writing(32, 64, 2, 2, batch=3), [schedule(2, 1, 1, 1, seen=1), schedule(1, 2, 1, 1)]),
    "head of 80": (lambda: writing(40, 80), [schedule(2, 1, 1, 1), schedule(1, 2, 2, 1)]),
}  # fmt: skip


def kernel(roots: list[Tensor]) -> kir.Kernel:
    leaves = {n: str(n.attr("name")) for n in topological(roots) if n.op == "input"}
    outs = {f"out{i or ''}": r for i, r in enumerate(roots)}
    kinds = {**{name: n for n, name in leaves.items()}, **outs}
    buffers = {name: kir.Buffer(n.dtype, tuple(n.shape), contiguous(n.shape)) for name, n in kinds.items()}  # type: ignore[arg-type]
    return kernel_of(roots, leaves, buffers)


@pytest.mark.parametrize("name", CASES)
def test_the_kernel_means_what_its_terms_mean(name: str) -> None:
    roots = CASES[name][0]()
    one, rng = kernel(roots), np.random.default_rng(0)
    leaves = {str(n.attr("name")): n for n in topological(roots) if n.op == "input"}
    for at in ((9, 30, 0), (31, 2, 17)):
        given = {n: rng.standard_normal(leaf.shape) for n, leaf in leaves.items()}
        given["at"] = np.array(at[: leaves["at"].shape[0]])
        held = {n: v.reshape(-1).copy() for n, v in given.items()}
        held |= {"out": np.full(roots[0].type.nbytes // 4, np.nan), "out1": held["k"], "out2": held["v"]}  # in place
        kernel_interpreter.run(one, held)
        for n, want in zip(("out", "out1", "out2"), evaluate(roots, given, float64=True)):
            np.testing.assert_allclose(held[n].reshape(want.shape), want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("name", "dtype"), [*((n, "bfloat16") for n in CASES), (next(iter(CASES)), "float16")])
def test_rows_are_written_and_attended_to(name: str, dtype: str, tmp_path: Path) -> None:
    """In place and into other memory, at each end of a block's positions; a row outside is written nowhere."""
    make, own = CASES[name]
    template = generated(make())
    call = call_of(template, dtype)
    found = template.lower(call)
    assert found is not None
    made = []
    for one in (*own, dict(found.space[0])):
        assert BACKEND.emitter.fits(found.kernel, found.shape, one, found.cuts), one
        (launch,) = launches(template, replace(call, schedule=one))
        assert isinstance(launch, CudaLaunch)
        made.append(launch)
    kernels = compiled(source_of({launch.name: launch for launch in made}.values()), tmp_path)
    room = call.operands["k"].type.shape[2]
    for launch in made:
        for seed, ats in enumerate(((0, 31, 5), (15, 16, 3), (room - 1, 2, 0), (room + 3, -1, 7))):  # type: ignore[operator]
            for inplace in (True, False):
                where = memory(template, call, seed)
                where["at"].array[:] = ats[: where["at"].array.size]
                before = {n: where[n].array.copy() for n in ("k", "v")}
                for out, base in (("out1", "k"), ("out2", "v")):
                    where[out].array[:] = where[base].array
                    where[base] = where[out] if inplace else where[base]
                want = {
                    n: g.array.astype(np.float64) if g.array.dtype.kind in "fV" else g.array.copy()
                    for n, g in where.items()
                }
                with np.errstate(invalid="ignore"):
                    kernel_interpreter.run(found.kernel, want)
                kernels[launch.name]([where[a].array.ctypes.data for a in launch.args], launch.grid, launch.block)
                assert all(g.intact for g in where.values())
                for out, base in (("out", ""), ("out1", "k"), ("out2", "v")):
                    got, there = where[out].array.astype(np.float64), ~np.isnan(want[out])
                    assert (np.isnan(got) == ~there).all()
                    assert error(got[there], want[out][there]) < TOLERANCE[dtype], (out, ats, launch.text[:300])
                    if base and not inplace:
                        assert where[base].array.tobytes() == before[base].tobytes()
                    if base:  # whatever is not the row keeps every bit
                        rows = (
                            (where[out].array.view(np.uint16) != before[base].view(np.uint16))
                            .reshape(-1, call.output.type.shape[-1])
                            .any(1)
                        )  # type: ignore[call-overload]
                        assert rows.sum() <= len(rows) // room  # type: ignore[operator]


def test_a_row_is_computed_once_a_block_and_replaces_what_was_loaded() -> None:
    template = generated(writing(768, 256, norm=True, window=512))
    call = replace(call_of(template, "bfloat16"), schedule=schedule(16, 3, 4, 1, early=1))
    (launch,) = launches(template, call)
    assert isinstance(launch, CudaLaunch)
    text = launch.text
    loaded, row, meet, replaced, scores = (
        text.index(s) for s in ("attention.load_keys", "write(new_keys", "await_blocks", "replace_keys", "write_scores")
    )
    assert loaded < row < meet < replaced < scores
    assert text.count("across_warp<Sum") == 2  # the norms of a query and of the key
    assert launch.shared_bytes > 2 * 2 * 256


@pytest.mark.parametrize("seen", [0, 1])
def test_a_cache_as_it_was_before_the_program_is_under_way_before_the_wait(seen: int, tmp_path: Path) -> None:
    """Not so if an earlier kernel may be writing it, or the number that ends what is read; results are the same."""
    template = generated(writing(64, 64, groups=2))
    call = replace(
        call_of(template, "bfloat16"), schedule=schedule(2, 2, 1, 1, early=1) | ({"seen": 1} if seen else {})
    )
    made = [
        launches(template, replace(call, constant=frozenset(c)))[0] for c in ((), ("k",), ("k", "v"), ("k", "v", "at"))
    ]
    heads = [launch.text.partition("await_previous();")[0] for launch in made]  # type: ignore[union-attr]
    assert ["load_keys" in h for h in heads] == [False, False, not seen, True]
    assert ["at_[0]" in h for h in heads] == ["(-infinity()) : 0.0f" in h for h in heads] == [False, False, False, True]
    where = memory(template, call)
    where["at"].array[:] = 33
    results = []
    for n, launch in enumerate(made):
        assert isinstance(launch, CudaLaunch)
        (tmp_path / str(n)).mkdir()
        kernel_ = compiled(source_of([launch]), tmp_path / str(n))[launch.name]
        kernel_([where[a].array.ctypes.data for a in launch.args], launch.grid, launch.block)
        results.append([where[o].array.tobytes() for o in ("out", "out1", "out2")])
    assert results[1:] == results[:-1]


@pytest.mark.parametrize("apart", [True, False])
def test_angles_of_the_position_are_computed_before_the_wait(apart: bool, tmp_path: Path) -> None:
    """Warps that compute rows and no queries wait for the previous kernel themselves; results are the same."""
    template = generated(writing(64, 64, groups=2, angles=True))
    call = replace(call_of(template, "bfloat16"), schedule=schedule(1, 4 if apart else 2, 1, 1, early=1))
    where = memory(template, call)
    where["at"].array[:] = 33
    results = []
    for n, constant in enumerate(((), ("k", "v", "at", "waves"))):
        (launch,) = launches(template, replace(call, constant=frozenset(constant)))
        assert isinstance(launch, CudaLaunch)
        assert launch.text.count("await_previous();") == (3 if apart and constant else 1)
        angles = [at.start() for at in re.finditer(r"op::(cos|sin)\(", launch.text)]
        early = [at < launch.text.rindex("await_previous();") for at in angles]
        assert early == ([True] * (4 if apart else 2) + [False] * (0 if apart else 2) if constant else [False] * 4)
        (tmp_path / str(n)).mkdir()
        kernel_ = compiled(source_of([launch]), tmp_path / str(n))[launch.name]
        kernel_([where[a].array.ctypes.data for a in launch.args], launch.grid, launch.block)
        results.append([where[o].array.tobytes() for o in ("out", "out1", "out2")])
    assert results[0] == results[1]


def test_elements_that_may_be_overwritten_are_not_used() -> None:
    """The old keys, or keys with another row replaced, beside the new ones: the order of blocks would decide."""
    attention, keys, values = writing(64, 64)
    base = next(n for n in topological([keys]) if n.op == "input" and n.attr("name") == "k")
    with pytest.raises(Unfusable, match="buffer that it scatters into"):
        kernel([attention + t.sum(base, axis=2, keepdims=True), keys, values])
    place = t.broadcast_to(t.reshape(t.input("at2", (1,), "int64"), (1, 1, 1, 1)), (1, 1, 1, 64))
    other = t.scatter_elements(base, place, x("row", 1, 1, 1, 64), 2)
    with pytest.raises(Unfusable):
        kernel([t.matmul(x("q", 1, 1, 4, 64), t.transpose(other)), keys])


def test_several_rows_are_left_to_kernels_of_their_own() -> None:
    base, rows = x("k", 1, 1, 64, 64), x("rows", 1, 1, 3, 64)
    place = t.broadcast_to(t.reshape(t.input("at", (3,), "int64"), (1, 1, 3, 1)), rows.shape)
    keys = t.scatter_elements(base, place, rows, 2)
    with pytest.raises(Unfusable, match="one row"):
        kernel([t.sum(keys, axis=2, keepdims=True), keys])


def test_a_row_that_is_replaced_without_being_written_has_the_kernels_that_it_had() -> None:
    here = t.eq(t.iota((1, 1, 64, 1), 2), t.reshape(t.input("at", (1,), "int64"), (1, 1, 1, 1)))
    template = generated(t.where(here, x("row", 1, 1, 1, 64), x("k", 1, 1, 64, 64)))
    assert template.lower(call_of(template, "bfloat16")) is not None


def test_only_clusters_write_rows_beside_attention() -> None:
    template = generated(writing(64, 64))
    found = template.lower(call_of(template, "bfloat16"))
    assert found is not None and all("parts" in one for one in found.space)
    with using_machine(of_key("gpu:NVIDIA A100:sm80:multiprocessors=108")):
        assert generated(writing(64, 64)).lower(call_of(template, "bfloat16")) is None


def decode_step() -> Graph:
    """Attention of a token over caches, which are states, from a product of an input, and a product of its results."""
    widths = (4 * 64, 64, 64)
    a = t.input("a", (1, 1, 128), "bfloat16")
    whole = t.matmul(a, t.param("w", (128, sum(widths)), "bfloat16"))
    q, k, v = (t.reshape(p, (1, 1, -1, 64)) for p in t.split(whole, widths, -1))
    q, k = (c.rms_norm(p, t.param(f"g{n}", (64,), "bfloat16"), eps=1e-6) for n, p in (("q", q), ("k", k)))
    start = t.input("at", (1,), "int64")
    at = t.reshape(start, (1, 1, 1, 1))
    caches = (t.state(n, (1, 1, 128, 64), "bfloat16") for n in ("keys", "values"))
    keys, values = (
        t.scatter_elements(cache, t.broadcast_to(at, k.shape), row, 2) for cache, row in zip(caches, (k, v))
    )
    hidden = t.gt(t.iota((1, 1, 1, 128), 3), at)
    mask = t.cast(t.where(hidden, t.full((1,) * 4, float("-inf")), t.full((1,) * 4, 0.0)), "bfloat16")
    out = t.reshape(c.masked_attention(q, keys, values, mask, scale=0.125), (1, 1, 256))
    out = t.matmul(out, t.param("o", (256, 128), "bfloat16"))
    graph = Graph.of({"out": out}, updates={"keys": keys, "values": values}, inputs=[a, start], name="decode")
    rng = np.random.default_rng(0)
    weights = {str(n.attr("name")): rng.standard_normal(n.shape).astype(np.float32) for n in graph.leaves("param")}
    return replace(graph, params=weights)


def test_a_decode_step_has_one_kernel_for_attention_and_caches_written_in_place() -> None:
    pytest.importorskip("torch")
    graph = simplify(decode_step())
    view = saturate_block(graph, ALL, Limits(iterations=3), session=InProcess())
    found = candidate_hypergraph(view, [BACKEND, backend("torch_cuda")], view_strides)
    plan = plan_of(search(found, Cheap()), graph)
    steps = [s for s in plan.steps if not s.is_view]
    assert [len(s.outputs) for s in steps] == [1, 3, 1]
    assert {*layout(plan).pinned.values()} == {"keys", "values"}
    source = emit_for(plan).source
    assert "carried(" not in source.partition("def launch()")[2]


class CheapGenerated(Cheap):
    """Bytes and a launch; library kernels cost more than every plan of generated ones."""

    def price(self, found: Any) -> list[Priced]:
        library = [0.0 if k.is_view or k.template.backend == BACKEND.name else 1e3 for k in found]
        costs = [p.us + more for p, more in zip(super().price(found), library)]
        return [Priced(us, us, us, "bound") for us in costs]


def test_states_are_read_before_the_wait_and_values_of_the_program_are_not() -> None:
    """The first kernel waits for all before the program; the caches are written by the kernel that reads them."""
    pytest.importorskip("torch")
    graph = simplify(decode_step())
    view = saturate_block(graph, ALL, Limits(iterations=3), session=InProcess())
    found = candidate_hypergraph(view, [BACKEND, backend("torch_cuda")], view_strides)
    plan = plan_of(search(found, CheapGenerated()), graph)
    early = [
        replace(s, call=replace(s.call, schedule={**s.template.space(s.call)[0], "early": 1}))
        if s.template.space
        else s
        for s in plan.steps
    ]  # type: ignore[index]
    held = plan_for_launching(replace(plan, steps=tuple(early), launching=HELD))
    first, attends, last = (s for s in held.steps if not s.is_view)
    origins = {o: plan.values[roots(plan)[v]].origin for o, v in attends.inputs}
    assert {o for o, origin in origins.items() if origin in ("state", "weight")} == attends.call.constant
    assert "kernel" in origins.values() and sum(origin == "state" for origin in origins.values()) == 2
    assert not first.call.constant and not first.call.schedule.get("early") and last.call.constant


def test_a_cache_that_is_read_counts_and_is_cold() -> None:
    """Its bytes are those of attention alone, and measuring rotates it with the other operands."""
    pytest.importorskip("torch")
    roots = writing(768, 256)
    template, alone = generated(roots), generated(attention(768, 256))
    call = call_of(template, "bfloat16")
    (_, ours), (_, least) = (call_work(one, call_of(one, "bfloat16")) for one in (template, alone))
    assert 0 < ours - least < 8 * 256 * 2
    bench = Bench(device_of("cpu"), template.pattern, call)
    first, (second,) = bench.sets[0], bench._copied(1)
    assert bench.nbytes > 2 * 2 * 768 * 256
    assert all(a.data_ptr() != b.data_ptr() for a, b in zip(first.outputs, second.outputs))
