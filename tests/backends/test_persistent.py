"""Persistent kernels: their order, their text, and runs on the CPU with blocks that take turns at random."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tensor_graphs.egraph.ir.builders as t
from tensor_graphs.backends import gpu, registry
from tensor_graphs.backends.cuda.backend import Cuda
from tensor_graphs.backends.cuda.emit.spelling import CudaLaunch
from tensor_graphs.backends.generate.template import launches
from tensor_graphs.backends.library.torch_cuda import BACKEND as TORCH
from tensor_graphs.backends.library.torch_cuda import TorchCudaBackend
from tensor_graphs.backends.program.emission import emit_for, executed
from tensor_graphs.backends.program.emit_cpu import EmittedProgram
from tensor_graphs.backends.program.emit_gpu import emit_cuda
from tensor_graphs.backends.program.emit_gpu_persistent import PersistentEmitter
from tensor_graphs.backends.program.launching import OVERLAPPING, overlapping
from tensor_graphs.backends.program.stage_order import Accesses, Span, StageOrder, check_order, order_of
from tensor_graphs.backends.program.weights import EvaluatedWeights
from tensor_graphs.egraph.ir import composite_ops as c
from tensor_graphs.egraph.ir.dtypes import numpy_dtype
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.extract.model.plan import Plan

from .cuda_host import cuda_core

torch = pytest.importorskip("torch")
GOLDEN = Path(__file__).with_name("golden")


# ---------------------------------------------------------------- order
def accesses(reads: str, writes: str) -> Accesses:
    return Accesses(tuple(map(Span, reads)), tuple(map(Span, writes)))


def test_a_stage_waits_for_what_it_reads_and_for_readers_of_what_it_overwrites() -> None:
    chain = [accesses("x", "a"), accesses("a", "b"), accesses("ab", "c"), accesses("c", "a"), accesses("y", "d")]
    order = order_of(chain)
    assert order.waits == ((), (0,), (1,), (2,), ())  # 2 reads a as well: 1 has waited for it
    assert order.before()[3] == {0, 1, 2} and order.most == 1


def test_spans_conflict_where_they_overlap() -> None:
    low, middle, high = (Span("workspace", a, a + 10) for a in (0, 5, 10))
    write = [Accesses((), (s,)) for s in (low, middle, high)]
    assert order_of(write).waits == ((), (0,), (1,))
    assert order_of([write[0], write[2]]).waits == ((), ())
    assert order_of([Accesses((low,), ()), Accesses((low,), ())]).waits == ((), ())


@pytest.mark.parametrize("removed", [0, 1, 2])
def test_a_removed_wait_is_found(removed: int) -> None:
    """Read after write, write after read, write after write."""
    stages = [accesses("x", "a"), accesses("a", "b"), accesses("y", "a"), accesses("z", "a")]
    order = order_of(stages)
    check_order(stages, order)
    waits = [() if i == removed + 1 else w for i, w in enumerate(order.waits)]
    with pytest.raises(AssertionError, match="without an order"):
        check_order(stages, StageOrder(tuple(waits)))


# ---------------------------------------------------------------- programs
SIZES = {"g": (64,), "w": (64, 96), "v": (64, 96), "u": (96, 64), "q": (64, 128), "k": (64, 64), "o": (128, 64)}


def mlp() -> Graph:
    x = t.input("x", (1, 64), "bfloat16")
    p = {n: t.param(n, s, "bfloat16") for n, s in SIZES.items()}
    for _ in range(2):
        hidden = c.rms_norm(x, p["g"], eps=1e-6)
        x = x + t.matmul(c.silu(t.matmul(hidden, p["w"])) * t.matmul(hidden, p["v"]), p["u"])
    return Graph.of(x, name="mlp")


def decode() -> Graph:
    """A decode step with a cache of keys that are values as well: two query heads, 16 positions."""
    x, at = t.input("x", (1, 64), "bfloat16"), t.input("at", (1,), "int64")
    p = {n: t.param(n, s, "bfloat16") for n, s in SIZES.items()}
    hidden = c.rms_norm(x, p["g"], eps=1e-6)
    query = t.reshape(t.matmul(hidden, p["q"]), (1, 1, 2, 64))
    keys = t.state("keys", (1, 1, 16, 64), "bfloat16")
    place = t.broadcast_to(t.reshape(at, (1, 1, 1, 1)), (1, 1, 1, 64))
    kept = t.scatter_elements(keys, place, t.reshape(t.matmul(hidden, p["k"]), (1, 1, 1, 64)), 2)
    hidden_positions = t.gt(t.iota((1, 1, 1, 16), 3), t.reshape(at, (1, 1, 1, 1)))
    mask = t.cast(t.where(hidden_positions, t.full((1,) * 4, float("-inf")), t.full((1,) * 4, 0.0)), "bfloat16")
    seen = c.masked_attention(query, kept, kept, mask, scale=0.125)
    return Graph.of(x + t.matmul(t.reshape(seen, (1, 128)), p["o"]), name="decode", updates={"keys": kept})


GRAPHS = {"mlp": mlp, "decode": decode}


@cache
def planned(name: str) -> Plan:
    """The plan of CUDA C++ kernels by predicted times."""
    import tensor_graphs as tg

    with pytest.MonkeyPatch.context() as patch:
        views = [v for v in TORCH.templates if v.family == "view"]
        patch.setitem(registry.CHOICES, "generated", ("nvrtc", "torch_cuda"))
        patch.setattr(TorchCudaBackend, "templates", property(lambda self: views))
        for kind in (Cuda, TorchCudaBackend):
            patch.setattr(kind, "unavailable", lambda self: "")
        patch.setattr(gpu, "hardware", lambda: "rehearsal")
        patch.setattr("tensor_graphs.pipeline.search.faster_unoptimized", lambda *given: None)
        program = tg.optimize(
            GRAPHS[name](),
            params=given(name)[0],
            backend="generated",
            measure=False,
            verify=False,
            budget=3,
        )
    assert program.plan is not None
    return program.plan


def split(plan: Plan) -> Plan:
    """The plan with products in two parts, which the last block of a tile joins."""
    steps = []
    for step in plan.steps:
        space = [] if step.template.space is None else [s for s in step.template.space(step.call) if s.get("split")]
        steps.append(replace(step, call=replace(step.call, schedule=space[0])) if space else step)
    assert any(s.call.schedule.get("split") for s in steps)
    return replace(plan, steps=tuple(steps))


def given(name: str) -> tuple[dict[str, Any], list[Any]]:
    rng = np.random.default_rng(0)
    used = "gwvu" if name == "mlp" else "gqko"
    weights = {n: (rng.standard_normal(SIZES[n]) / 8).astype(numpy_dtype("bfloat16")) for n in used}
    inputs = [torch.from_numpy(rng.standard_normal((1, 64)).astype(np.float32)).bfloat16()]
    return weights, inputs + ([torch.tensor([3])] if name == "decode" else [])


class Turns:
    """How many blocks a persistent kernel has, and the seed by which they take turns."""

    blocks = 3
    seed = 1


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """CUDA C++ is compiled and launched on this CPU."""
    for name, module in cuda_core(tmp_path).items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index=None: (9, 0))
    yield


def run(emitted: EmittedProgram, params: dict[str, Any], states: dict[str, Any], inputs: list[Any]) -> list[Any]:
    """Results of a program on the CPU."""
    space = executed(emitted.source, "persistent")
    weights = EvaluatedWeights(emitted.weights, params, emitted.plain)
    kernels = space["CudaKernel"]

    def whole(self: Any, kernel: Any, places: list[int], maps: list[Any]) -> None:
        kernel(places, Turns.blocks, self.block, Turns.seed)

    kernels.launch_described = whole
    kernels.made = lambda self, device, aligned: (
        self.modules.setdefault(aligned, kernels.compiled("sm_90", aligned)).get_kernel(self.name),
        SimpleNamespace(grid=self.grid, block=self.block),
    )
    program = space["bind"](weights, states or None, "cpu", graph=False)
    found = [program(*inputs) for _ in range(2)]  # counters are zero again: it can run twice
    return [x for one in found for x in one]


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("parts", [False, True], ids=["", "split"])
@pytest.mark.parametrize("name", GRAPHS)
def test_results_are_those_of_separate_kernels(name: str, parts: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit, in any interleaving of blocks, states included."""
    plan = split(planned(name)) if parts else planned(name)
    weights, inputs = given(name)
    emitter = PersistentEmitter(plan, False)
    emitted = emitter.emit()
    (steps,) = emitter.runs.values()
    assert len(steps) == plan.kernels and not emitter.refused and emitted.source.count("__global__") == 1
    keys = torch.zeros((1, 1, 16, 64), dtype=torch.bfloat16)
    states = {"keys": keys.clone()} if plan.updates else {}
    want = run(emit_cuda(plan), weights, states, inputs)
    for blocks, seed in ((1, 1), (3, 2), (4, 3), (7, 4)):
        monkeypatch.setattr(Turns, "blocks", blocks)
        monkeypatch.setattr(Turns, "seed", seed)
        own = {"keys": keys.clone()} if plan.updates else {}
        got = run(emitted, weights, own, inputs)
        assert all(map(torch.equal, got, want)), (blocks, seed)
        assert all(torch.equal(own[n], states[n]) for n in own)


# ---------------------------------------------------------------- overlapping launches
@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("parts", [False, True], ids=["", "split"])
@pytest.mark.parametrize("name", GRAPHS)
def test_overlapping_kernels_read_their_weights_before_they_wait(name: str, parts: bool) -> None:
    """And nothing else; the first kernel begins when all before the program has ended. Results are the same."""
    plan = split(planned(name)) if parts else planned(name)
    weights, inputs = given(name)
    changed = overlapping(plan)
    first, *others = [s for s in changed.steps if not s.is_view]
    assert not first.call.constant and not first.call.schedule.get("early")
    assert all(s.call.schedule["early"] for s in others)
    held = 0
    for step in others:
        (launch,) = launches(step.template, step.call)  # type: ignore[arg-type]
        assert isinstance(launch, CudaLaunch)
        head, wait, _ = launch.text.partition("await_previous();")
        read = re.findall(
            r"(?:read(?:_once)?(?:_if)?<\d+>|fetch)\(.*?\b(x\d+|part\d*|out\d*) \+|(\bx\d+)\[", head.partition("{")[2]
        )
        names = {a or b for a, b in read}
        assert wait and names <= step.call.constant
        held += bool(names)
    assert held
    states = [{"keys": torch.zeros((1, 1, 16, 64), dtype=torch.bfloat16)} if plan.updates else {} for _ in range(2)]
    want = run(emit_cuda(plan), weights, states[0], inputs)
    got = run(emit_for(replace(plan, launching=OVERLAPPING)), weights, states[1], inputs)
    assert all(map(torch.equal, got, want)) and all(torch.equal(states[0][n], states[1][n]) for n in states[0])
