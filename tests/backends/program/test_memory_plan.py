"""Laws of the memory plan: live values do not overlap, waste is at most one buffer, and it is deterministic."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import tensor_graphs.egraph.builders.builders as t
from tensor_graphs.backends.library.numpy_rows import row
from tensor_graphs.backends.program.emit import memory_plan as memory
from tensor_graphs.backends.program.emit.memory_plan import ALIGNMENT, LiveBuffer, aligned, place
from tensor_graphs.backends.program.program import Program
from tensor_graphs.backends.registry import backend, template
from tensor_graphs.backends.tuning.unfused import FREE, direct_plan
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.extract.model.kernel import Call, Operand
from tensor_graphs.extract.model.plan import Plan, Step, Value

buffers = st.lists(
    st.builds(
        lambda size, first, span: LiveBuffer(size, first, first + span),
        st.integers(0, 5000),
        st.integers(0, 30),
        st.integers(0, 10),
    ),
    max_size=40,
)


@settings(deadline=None, max_examples=80)
@given(buffers)
def test_no_two_live_buffers_overlap(found: list[LiveBuffer]) -> None:
    offsets, total = place(found)
    for i, (a, x) in enumerate(zip(found, offsets)):
        assert x % ALIGNMENT == 0 and x + a.size <= total
        for b, y in zip(found[:i], offsets):
            if a.first <= b.last and b.first <= a.last and a.size and b.size:
                assert x + a.size <= y or y + b.size <= x


@settings(deadline=None, max_examples=80)
@given(buffers)
def test_the_peak_lies_between_the_widest_cut_and_the_sum(found: list[LiveBuffer]) -> None:
    _, total = place(found)
    cut = max((sum(aligned(b.size) for b in found if b.first <= i <= b.last) for i in range(41)), default=0)
    assert cut <= total <= sum(aligned(b.size) for b in found)


@settings(deadline=None, max_examples=30)
@given(buffers)
def test_placing_is_deterministic(found: list[LiveBuffer]) -> None:
    assert place(found) == place(list(found))


def chain(length: int) -> Graph:
    x = t.input("x", (64, 64))
    for _ in range(length):
        x = t.tanh(x) * 2.0
    return Graph.of(x)


def test_a_chain_runs_in_one_buffer() -> None:
    plan = direct_plan(chain(20), [backend("numpy")])
    assert memory.layout(plan, outside=plan.outputs).size == 64 * 64 * 4


def test_a_value_read_later_is_not_overwritten() -> None:
    x = t.input("x", (64,))
    a = t.exp(x)
    b = t.tanh(a)
    plan = direct_plan(Graph.of(a + b), [backend("numpy")])
    found = memory.layout(plan)
    first, second, third = (s.output for s in plan.steps)
    assert found.buffer[first] != found.buffer[second]
    assert found.buffer[third] in (first, second)


def test_an_operand_seen_twice_in_two_ways_is_not_overwritten() -> None:
    x = t.input("x", (8, 8))
    a = t.exp(x)
    plan = direct_plan(Graph.of(a + t.transpose(a)), [backend("numpy")])
    found = memory.layout(plan)
    made = [s.output for s in plan.steps if not s.is_view]
    assert found.buffer[made[0]] != found.buffer[made[1]]


def test_sizes_stay_expressions_until_bound() -> None:
    n = t.dim("n", min=1, max=4096)
    y = t.tanh(t.exp(t.input("x", (n, 4))) * 2.0)
    kind = y.type
    call = Call({"x": Operand(kind, (4, 1))}, Operand(kind, (4, 1)), {})
    values = [Value(0, kind, (4, 1), "input", "x"), *(Value(i, kind, (4, 1), "kernel") for i in (1, 2))]
    steps = [
        Step(template("numpy", f"np.{op}"), call, (("x", i),), i + 1, FREE) for i, op in enumerate(("exp", "tanh"))
    ]
    plan = Plan(Graph.of(t.tanh(t.exp(t.input("x", (n, 4))))), tuple(values), tuple(steps), {}, (2,), {}, 0, 0)
    found = memory.layout(plan, sizes={"n": 100})
    assert found.size == aligned(1600)
    assert found.record["1"][0] == "16*n"


def test_scratch_memory_is_apart_from_all_that_lives() -> None:
    """Over any chain of kernels with scratch memory: it overlaps neither operands nor result, and is used again."""
    shape, doubled = (16, 8), row("doubled", "exp(x)", "np.add({x}, {x}, out=place({scratch}, 0, (16, 8), np.float32)); "
                                  "np.copyto({out}, place({scratch}, 0, (16, 8), np.float32))",
                                  scratch=lambda call: call.output.type.nbytes)  # fmt: skip
    x = t.input("x", shape)
    kind, layout = x.type, (8, 1)
    call = Call({"x": Operand(kind, layout)}, Operand(kind, layout), {})
    values = [Value(0, kind, layout, "input", "x"), *(Value(i, kind, layout, "kernel") for i in (1, 2, 3))]
    steps = [Step(doubled, call, (("x", i),), i + 1, FREE) for i in range(3)]
    plan = Plan(Graph.of(t.exp(x)), tuple(values), tuple(steps), {}, (3,), {}, 0, 0)
    found = memory.layout(plan)
    size = kind.nbytes
    for step in steps:
        start, bytes_ = found.scratch[step.output]
        assert bytes_ == size
        for v in (step.output, step.inputs[0][1]):
            if v in found.buffer:
                assert abs(found.offsets[found.buffer[v]] - start) >= size
    assert found.size == 3 * size
    one = np.ones(shape, np.float32)
    program = Program(plan)
    assert (program(one) == 8 * one).all()
    assert "place(" not in program.source[program.source.index("def run") :]
