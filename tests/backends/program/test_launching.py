"""Ways to launch the kernels of a plan: what they read before they wait, and results of programs run on the CPU."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensor_graphs.egraph.builders.builders as t
from tensor_graphs.backends.cuda.backend import generated
from tensor_graphs.backends.cuda.emit.spelling import CudaLaunch
from tensor_graphs.backends.generate.call_code import launches
from tensor_graphs.backends.program.launch.emission import emit_for, executed
from tensor_graphs.backends.program.launch.launching import HELD, OVERLAPPING, OVERLAPS, plan_for_launching
from tensor_graphs.backends.program.weights import EvaluatedWeights
from tensor_graphs.egraph.composites import composite_ops as c
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.ir.tensor import Tensor
from tensor_graphs.egraph.ops.ops import Type
from tensor_graphs.egraph.types.dtypes import numpy_dtype
from tensor_graphs.errors import UsageError
from tensor_graphs.extract.model.kernel import Call, Operand, contiguous
from tensor_graphs.extract.model.plan import Plan, Step, Value
from tensor_graphs.extract.model.pricing import Priced
from tensor_graphs.pipeline.cache.plan_file import plan_from_json, plan_to_json

torch = pytest.importorskip("torch")
GOLDEN = Path(__file__).parents[1] / "golden"


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


def run(plan: Plan, params: dict[str, Any], states: dict[str, Any], inputs: list[Any]) -> list[Any]:
    """Results of two calls of a plan's program on the CPU."""
    emitted = emit_for(plan)
    weights = EvaluatedWeights(emitted.weights, params, emitted.plain)
    program = executed(emitted.source, "launched")["bind"](weights, states or None, "cpu", graph=False)
    return [x for _ in range(2) for x in program(*inputs)]


# ---------------------------------------------------------------- ways
def read_before_wait(step: Step) -> set[str]:
    """Operands that a step's kernel reads before it waits for the previous one; all if it does not wait."""
    (launch,) = launches(step.template, step.call)  # type: ignore[arg-type]
    assert isinstance(launch, CudaLaunch)
    head = launch.text.partition("{")[2].partition("await_previous();")[0]
    found = re.findall(r"(?:read\w*<\d+>\(|fetch\(.*?\], )(\w+) \+|\b(\w+_)\[", head)
    return {(a or b).removesuffix("_") for a, b in found}


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize(("name", "parts", "overlap"), [("mlp", True, OVERLAPPING), ("decode", False, HELD)])
def test_weights_are_read_before_the_wait_and_nothing_else(name: str, parts: bool, overlap: str) -> None:
    """The first kernel begins when all before the program has ended. Results are the same bit for bit, states
    included."""
    plan = planned(name, parts)
    first, *others = plan_for_launching(replace(plan, launching=overlap)).steps
    assert not first.call.constant and not first.call.schedule.get("early")
    assert all(s.call.schedule.get("early") for s in others) or overlap == HELD
    held = [read_before_wait(s) for s in others if s.call.schedule.get("early")]
    assert any(held) and all(names <= s.call.constant for names, s in zip(held, others, strict=True))
    weights, inputs = given(name)
    states = [{"keys": torch.zeros((1, 1, 16, 64), dtype=torch.bfloat16)} if plan.updates else {} for _ in range(2)]
    want = run(plan, weights, states[0], inputs)
    got = run(replace(plan, launching=overlap), weights, states[1], inputs)
    assert all(map(torch.equal, got, want)) and all(torch.equal(states[0][n], states[1][n]) for n in states[0])


def test_matrices_are_under_way_to_shared_memory_before_the_wait() -> None:
    """The first copies of a loop over a matrix, if it is a weight; of an operand that a kernel writes, behind the
    wait."""
    sizes = {"a": (1, 640), "g": (640,), "w": (640, 64)}
    a, g, w = (t.input(n, size, "bfloat16") for n, size in sizes.items())
    root = t.matmul(c.rms_norm(a, g, eps=1e-6), w)
    template = generated(root)
    operands = {o: Operand(Type(sizes[o], "bfloat16"), contiguous(sizes[o])) for o in template.operands}
    schedule = {"ahead": 3, "early": 1, "t0": 32, "tn": 4, "v0": 2, "vn": 8}
    call = Call(operands, Operand(root.type, contiguous(root.shape)), {}, schedule=schedule)  # type: ignore[arg-type]
    step = Step(template, call, (), 0, Priced(1.0, 1.0, 1.0, "bound"))
    assert read_before_wait(step) == set()
    assert read_before_wait(replace(step, call=replace(call, constant=frozenset("w")))) == {"w"}
    assert read_before_wait(replace(step, call=replace(call, constant=frozenset("g")))) <= {"g"}


def test_plans_keep_their_launch_overlap() -> None:
    plan = planned("mlp")
    graph = replace(plan.graph, params={n: np.zeros(s, np.float32) for n, s in SIZES.items()})
    for overlap in OVERLAPS:
        stored = plan_to_json(replace(plan, graph=graph, launching=overlap))
        assert stored.get("launching", "") == overlap and plan_from_json(stored, graph).launching == overlap
    with pytest.raises(UsageError, match="no launch overlap"):
        plan_from_json({**stored, "launching": "at once"}, graph)


def test_counters_of_split_reductions_are_made_before_any_call() -> None:
    """In a call that its caller captures, they would be zeroed by the caller's graph, in that graph's memory."""
    source = emit_for(planned("mlp", True)).source
    bind, _, launch = source.partition("def bind(")[2].partition("    def launch(")
    assert bind.count("    counts = counters(device)\n") == 1
    assert "counts)" in launch and "counters(" not in launch.partition("    return Calls(")[0].replace(
        "kernels.of(", ""
    )
