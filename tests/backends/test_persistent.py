"""Persistent kernels: their order, their text, and runs on the CPU with blocks that take turns at random."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tensor_graphs.egraph.ir.builders as t
from tensor_graphs.backends.cuda.backend import generated
from tensor_graphs.backends.cuda.emit.spelling import CudaLaunch
from tensor_graphs.backends.generate.template import launches
from tensor_graphs.backends.program.emission import emit_for, executed
from tensor_graphs.backends.program.emit_cpu import EmittedProgram
from tensor_graphs.backends.program.emit_gpu import emit_cuda
from tensor_graphs.backends.program.emit_gpu_persistent import PersistentEmitter
from tensor_graphs.backends.program.launching import OVERLAPPING, launched
from tensor_graphs.backends.program.stage_order import Accesses, Span, StageOrder, check_order, order_of
from tensor_graphs.backends.program.weights import EvaluatedWeights
from tensor_graphs.egraph.ir import composite_ops as c
from tensor_graphs.egraph.ir.dtypes import numpy_dtype
from tensor_graphs.egraph.ir.graph import Graph, Tensor
from tensor_graphs.egraph.ir.ops import Type
from tensor_graphs.extract.model.kernel import Call, Operand, contiguous
from tensor_graphs.extract.model.plan import Plan, Step, Value
from tensor_graphs.extract.model.pricing import Priced

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


def p(name: str, kind: Callable[..., Tensor] = t.param) -> Tensor:
    """A weight of the model, or the operand of a kernel that reads it."""
    return kind(name, SIZES[name], "bfloat16")


def gated(x: Tensor, kind: Callable[..., Tensor]) -> Tensor:
    hidden = c.rms_norm(x, p("g", kind), eps=1e-6)
    return c.silu(t.matmul(hidden, p("w", kind))) * t.matmul(hidden, p("v", kind))


def projected(x: Tensor, name: str, kind: Callable[..., Tensor]) -> Tensor:
    return t.matmul(c.rms_norm(x, p("g", kind), eps=1e-6), p(name, kind))


def kept(keys: Tensor, at: Tensor, new: Tensor) -> Tensor:
    place = t.broadcast_to(t.reshape(at, (1, 1, 1, 1)), (1, 1, 1, 64))
    return t.scatter_elements(keys, place, t.reshape(new, (1, 1, 1, 64)), 2)


def attention(query: Tensor, keys: Tensor, at: Tensor) -> Tensor:
    """Two query heads over 16 positions, whose keys are values as well."""
    hidden = t.gt(t.iota((1, 1, 1, 16), 3), t.reshape(at, (1, 1, 1, 1)))
    mask = t.cast(t.where(hidden, t.full((1,) * 4, float("-inf")), t.full((1,) * 4, 0.0)), "bfloat16")
    return t.reshape(c.masked_attention(t.reshape(query, (1, 1, 2, 64)), keys, keys, mask, scale=0.125), (1, 128))


LEAVES = {"x": ((1, 64), "bfloat16"), "at": ((1,), "int64"), "keys": ((1, 1, 16, 64), "bfloat16")}


def leaf(name: str) -> Tensor:
    return t.input(name, *LEAVES[name])


def row(name: str, size: int) -> Tensor:
    return t.input(name, (1, size), "bfloat16")


def mlp() -> tuple[Graph, dict[str, Tensor]]:
    """A graph, and its kernels by the names of their results."""
    x, kernels = leaf("x"), {}
    for i, read in enumerate(("x", "b0")):
        x = x + t.matmul(gated(x, t.param), p("u"))
        kernels[f"a{i}"] = gated(row(read, 64), t.input)
        kernels[f"b{i}"] = row(read, 64) + t.matmul(row(f"a{i}", 96), p("u", t.input))
    return Graph.of(x, name="mlp"), kernels


def decode() -> tuple[Graph, dict[str, Tensor]]:
    """A decode step with a cache, which a kernel writes in place before another one reads it."""
    x, at, keys = leaf("x"), leaf("at"), t.state("keys", *LEAVES["keys"])
    new = kept(keys, at, projected(x, "k", t.param))
    seen = attention(projected(x, "q", t.param), new, at)
    graph = Graph.of(x + t.matmul(seen, p("o")), name="decode", updates={"keys": new})
    return graph, {
        "key": projected(leaf("x"), "k", t.input), "new": kept(leaf("keys"), leaf("at"), row("key", 64)),
        "query": projected(leaf("x"), "q", t.input),
        "seen": attention(row("query", 128), t.input("new", *LEAVES["keys"]), leaf("at")),
        "sum": leaf("x") + t.matmul(row("seen", 128), p("o", t.input)),
    }  # fmt: skip


GRAPHS = {"mlp": mlp, "decode": decode}


@cache
def planned(name: str, parts: bool = False) -> Plan:
    """The plan of a graph's kernels; `parts`: products in parts, which the last block of a tile joins."""
    graph, kernels = GRAPHS[name]()
    values: dict[str, Value] = {}
    weights, steps = {}, []

    def value(name: str, kind: Type, origin: str, label: str = "") -> int:
        values[name] = Value(len(values), kind, contiguous(kind.shape), origin, label)  # type: ignore[arg-type]
        return values[name].id

    for n in graph.inputs:
        value(str(n.attr("name")), n.type, "input", str(n.attr("name")))
    for n in graph.leaves("state"):
        value(str(n.attr("name")), n.type, "state", str(n.attr("name")))
    for n in graph.leaves("param"):
        weights[value(str(n.attr("name")), n.type, "weight")] = n
    for result, root in kernels.items():
        template = generated(root)
        operands = {o: Operand(values[o].type, values[o].strides) for o in template.operands}
        call = Call(operands, Operand(root.type, contiguous(root.shape)), {})  # type: ignore[arg-type]
        assert template.space is not None
        space = [s for s in template.space(call) if bool(s.get("split")) == parts] or [*template.space(call)]
        made = value(result, root.type, "kernel")
        read = tuple((o, values[o].id) for o in template.operands)
        steps.append(Step(template, replace(call, schedule=space[0]), read, made, Priced(1.0, 1.0, 1.0, "bound")))
    assert any(s.call.schedule.get("split") for s in steps) or not parts
    updates = {"keys": values["new"].id} if name == "decode" else {}
    return Plan(graph, tuple(values.values()), tuple(steps), weights, (steps[-1].output,), updates, 5.0, 5.0)


def given(name: str) -> tuple[dict[str, Any], list[Any]]:
    rng = np.random.default_rng(0)
    weights = {n: (rng.standard_normal(s) / 8).astype(numpy_dtype("bfloat16")) for n, s in SIZES.items()}
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
@pytest.mark.parametrize(("name", "parts"), [("mlp", True), ("decode", False)])
def test_results_are_those_of_separate_kernels(name: str, parts: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit, in any interleaving of blocks, states included."""
    plan = planned(name, parts)
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
@pytest.mark.parametrize(("name", "parts"), [("mlp", True), ("decode", False)])
def test_overlapping_kernels_read_their_weights_before_they_wait(name: str, parts: bool) -> None:
    """And nothing else; the first kernel begins when all before the program has ended. Results are the same."""
    plan = planned(name, parts)
    weights, inputs = given(name)
    changed = launched(replace(plan, launching=OVERLAPPING))
    first, *others = [s for s in changed.steps if not s.is_view]
    assert not first.call.constant and not first.call.schedule.get("early")
    assert all(s.call.schedule["early"] for s in others)
    held = 0
    for step in others:
        (launch,) = launches(step.template, step.call)  # type: ignore[arg-type]
        assert isinstance(launch, CudaLaunch)
        head, wait, _ = launch.text.partition("await_previous();")
        read = re.findall(r"(?:read(?:_once)?(?:_if)?<\d+>|fetch)\(.*?\b(\w+) \+|(\b\w+_)\[", head.partition("{")[2])
        names = {(a or b).removesuffix("_") for a, b in read}
        assert wait and names <= step.call.constant
        held += bool(names)
    assert held
    states = [{"keys": torch.zeros((1, 1, 16, 64), dtype=torch.bfloat16)} if plan.updates else {} for _ in range(2)]
    want = run(emit_cuda(plan), weights, states[0], inputs)
    got = run(emit_for(replace(plan, launching=OVERLAPPING)), weights, states[1], inputs)
    assert all(map(torch.equal, got, want)) and all(torch.equal(states[0][n], states[1][n]) for n in states[0])
