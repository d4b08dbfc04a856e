"""Programs of generated kernels of both emitters in one plan, most of which may be started before the one before them
has ended: what test_cuda_graph.py asks of libraries' kernels, and what only an early start can get wrong."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tensor_graphs.egraph.builders.builders as t
from tensor_graphs.backends.cuda import backend as cuda_cpp
from tensor_graphs.backends.generate.template import GeneratedKernel, template_of
from tensor_graphs.backends.program.launch.emission import emit_for, executed
from tensor_graphs.backends.program.program import Program
from tensor_graphs.backends.registry import backend
from tensor_graphs.backends.triton import backend as triton
from tensor_graphs.egraph.composites import composite_ops as c
from tensor_graphs.egraph.evaluate.interpret import evaluate
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.ir.tensor import Tensor, topological
from tensor_graphs.egraph.ops.ops import Type
from tensor_graphs.egraph.types.dtypes import numpy_dtype
from tensor_graphs.extract.model.kernel import Call, Operand, contiguous
from tensor_graphs.extract.model.plan import Plan, Step, Value
from tensor_graphs.extract.model.pricing import Priced

from ..no_waiting import no_waiting

torch = pytest.importorskip("torch")
pytest.importorskip("triton", reason="generated kernels are Triton's")

NO_GPU = backend("torch_cuda").unavailable()
on_gpu = [pytest.mark.gpu, pytest.mark.skipif(bool(NO_GPU), reason=NO_GPU or "there is a GPU")]
gpu_only = pytest.mark.parametrize("device", [pytest.param("cuda", marks=on_gpu)])
EMITTERS = {"triton": triton.BACKEND.emitter, "cuda": cuda_cpp.BACKEND.emitter}
ROWS, WIDTH, INNER, LAYERS = 64, 256, 192, 4
SHAPES = {"g": (WIDTH,), "w": (WIDTH, INNER), "v": (INNER, WIDTH)}

Part = tuple[str, str, Callable[..., Tensor], tuple[str, ...]]  # result, emitter, term, what it reads


def parts(layers: int = LAYERS) -> list[Part]:
    """Layers of three kernels; what one reads the next but one writes over."""
    found: list[Part] = []
    last = "x"
    for n in range(layers):
        up: Part = (f"h{n}", "triton", lambda x, g, w: t.matmul(c.rms_norm(x, g, eps=1e-6), w), (last, "g", "w"))
        mix: Part = (f"s{n}", "cuda", lambda h: c.softmax(h, axis=1), (f"h{n}",))
        down: Part = (f"y{n}", "triton", lambda s, v, x: t.matmul(s, v) + x * 0.5, (f"s{n}", "v", last))
        sums: Part = (f"m{n}", "cuda", lambda y: t.max(y, axis=1, keepdims=True), (f"y{n}",))
        add: Part = (f"z{n}", "cuda", lambda y, m: y - m * 0.25, (f"y{n}", f"m{n}"))
        found += [up, mix, down, sums, add]
        last = f"z{n}"
    return found


def plan_of(dtype: str, early: bool, emitters: Sequence[str] = ("triton", "cuda"), layers: int = LAYERS) -> Plan:
    """The plan in which each part is one kernel, made by its emitter or by the first of those allowed; started early
    where its schedules know that."""
    terms: dict[str, Tensor] = {"x": t.input("x", (ROWS, WIDTH), dtype)}
    terms |= {n: t.param(n, s, dtype) for n, s in SHAPES.items()}
    values, ids, steps = [], {}, []

    def value(name: str, origin: str) -> int:
        kind = terms[name].type
        ids[name] = len(values)
        values.append(Value(ids[name], kind, contiguous(kind.shape), origin, name if origin == "input" else ""))  # type: ignore[arg-type]
        return ids[name]

    value("x", "input")
    weights = {value(n, "weight"): terms[n] for n in SHAPES}
    for name, emitter, term, read in parts(layers):
        terms[name] = term(*(terms[r] for r in read))
        root = term(*(t.input(r, terms[r].shape, dtype) for r in read))
        template = template_of(EMITTERS[emitter if emitter in emitters else emitters[0]], root)
        step = Step(template, scheduled(template, call_of(template, dtype), early), tuple((o, ids[o]) for o in template.operands),
                    value(name, "kernel"), Priced(1.0, 1.0, 1.0, "bound"))  # fmt: skip
        steps.append(step)
    outputs = [f"z{layers - 1}", f"m{layers - 1}"]
    graph = Graph.of([terms[n] for n in outputs], name="layers")
    return Plan(graph, tuple(values), tuple(steps), weights, tuple(ids[n] for n in outputs), {}, 1.0, 1.0)


def call_of(template: GeneratedKernel, dtype: str) -> Call:
    """A call over row-major operands."""
    shapes = {str(n.attr("name")): tuple(map(int, n.shape)) for n in topological(template.roots) if n.op == "input"}
    kind = lambda shape: Operand(Type(shape, dtype), contiguous(shape))
    return Call({o: kind(shapes[o]) for o in template.operands}, kind(tuple(map(int, template.root.shape))), {})


def scheduled(template: GeneratedKernel, call: Call, early: bool) -> Call:
    """In the best guess that starts early, or the same that does not."""
    assert template.space is not None
    space = [dict(s) for s in template.space(call)]
    found = next((s for s in space if s.get("early")), space[0])
    return replace(call, schedule={k: v for k, v in found.items() if early or k != "early"})


def weights(dtype: str) -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    drawn = {n: rng.standard_normal(s) / (s[0] ** 0.5 if len(s) > 1 else 1) for n, s in SHAPES.items()}
    return {n: w.astype(numpy_dtype(dtype)) for n, w in drawn.items()}


def inputs(count: int, device: str, dtype: Any = None) -> list[Any]:
    made = torch.Generator().manual_seed(1)
    return [torch.randn((ROWS, WIDTH), generator=made).to(device, dtype or torch.bfloat16) for _ in range(count)]


def program(early: bool = True, **more: Any) -> Program:
    return Program(plan_of("bfloat16", early), weights("bfloat16"), **more)


@pytest.mark.usefixtures("quick_interpreter")
def test_the_plan_means_its_graph() -> None:
    """Rehearsed: one emitter, by Triton's interpreter where there is no GPU."""
    plan = plan_of("float32", True, ("triton",), layers=1)
    device = "cpu" if NO_GPU else "cuda"
    run = executed(emit_for(plan).source, "layers")["bind"](weights("float32"), None, device)
    (given,) = inputs(1, device, torch.float32)
    want = evaluate(plan.graph, {"x": given.cpu().numpy()}, params=weights("float32"), float64=True)
    for a, b in zip(run(given), want, strict=True):
        np.testing.assert_allclose(a.cpu().numpy(), b, rtol=2e-3, atol=2e-3)


def test_most_kernels_start_early() -> None:
    for early, least in ((True, 0.8), (False, 0.0)):
        plan = plan_of("bfloat16", early)
        assert {s.template.backend for s in plan.steps} == {"triton", "nvrtc"}
        count = sum(bool(s.call.schedule.get("early")) for s in plan.steps)
        assert least * len(plan.steps) <= count <= (len(plan.steps) if early else 0)


@gpu_only
def test_values_are_those_of_the_graph(device: str) -> None:
    (x,), plan = inputs(1, "cpu"), plan_of("bfloat16", True)
    found = Program(plan, weights("bfloat16"))(x)
    given = {"x": x.view(torch.int16).numpy().view(numpy_dtype("bfloat16"))}
    want = evaluate(plan.graph, given, params=weights("bfloat16"), float64=True)
    for a, b in zip(found, want, strict=True):
        assert np.linalg.norm(a.double().numpy() - b) < 3e-2 * np.linalg.norm(b)


@gpu_only
def test_an_early_start_changes_nothing(device: str) -> None:
    """Bit by bit, replayed and launched, many times, with inputs that change each time: a kernel that reads too early
    has the value of the call before."""
    given = inputs(7, device)
    plain = program(early=False)
    want = [[r.clone() for r in plain(x)] for x in given]
    source = emit_for(plan_of("bfloat16", True)).source
    for graph in (True, False):
        run = executed(source, "layers")["bind"](weights("bfloat16"), None, device, graph)
        results = [(i % 7, run(given[i % 7])) for i in range(150)]
        torch.cuda.synchronize()
        for i, found in results:
            for a, b in zip(found, want[i], strict=True):
                assert torch.equal(a, b), "an early start is seen"


@gpu_only
def test_results_are_the_callers_own(device: str) -> None:
    """They stay what they were, the caller may write to them, and they may be given back as inputs."""
    own, (x, y) = program(), inputs(2, device)
    want = [r.clone() for r in own(x)]
    first = own(x)
    kept = [r.clone() for r in first]
    own(y)
    assert all(torch.equal(a, b) for a, b in zip(first, kept, strict=True))
    for r in first:
        r.fill_(float("nan"))
    assert all(torch.equal(a, b) for a, b in zip(own(x), want, strict=True))
    once = own(x)[0]
    twice = own(once)[0].clone()
    assert torch.equal(own(once.clone())[0], twice) and torch.equal(once, want[0])


@gpu_only
def test_inputs_may_lie_anyhow(device: str) -> None:
    """Transposed, part of another tensor, beginning at an odd address, repeated, written after the call."""
    own, (x,) = program(), inputs(1, device)
    want = own(x)[0].clone()
    wide = torch.zeros((ROWS, WIDTH + 3), device=device, dtype=x.dtype)
    wide[:, 3:] = x
    for other in (x.t().contiguous().t(), wide[:, 3:], x.cpu().to(device, non_blocking=True)):
        assert torch.equal(own(other)[0], want)
    row = x[:1].expand(ROWS, WIDTH)
    assert torch.equal(own(row)[0], own(row.contiguous())[0])
    given = x.clone()
    torch.cuda._sleep(10_000_000)
    found = own(given)[0]
    given.zero_()
    assert torch.equal(found, want)


@gpu_only
def test_it_becomes_part_of_the_callers_graph(device: str) -> None:
    """Recorded before the program's own first call, too."""
    given = inputs(3, device)
    want = [r[0].clone() for r in map(program(), given)]
    for called_before in (True, False):
        own, place = program().bind(), given[0].clone()
        if called_before:
            own(place)
        else:
            side = torch.cuda.Stream()
            with torch.cuda.stream(side):
                executed_once(own, place)
        recorded = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(recorded):
            before = place * 1.0
            result = own(before)[0] * 2
        for x, expected in zip(given, want, strict=True):
            place.copy_(x)
            recorded.replay()
            assert torch.equal(result, expected * 2)
        assert torch.equal(own(given[1])[0], want[1])


def executed_once(own: Program, x: Any) -> None:
    """Compile what is compiled at a first launch: that cannot be recorded."""
    own._run.plain([x])  # type: ignore[union-attr]


@gpu_only
def test_calls_on_several_streams_follow_each_other(device: str) -> None:
    own, given = program(), inputs(2, device)
    want = [own(x)[0].clone() for x in given]
    streams = [torch.cuda.Stream() for _ in range(3)]
    torch.cuda.synchronize()
    results = []
    for i in range(60):
        with torch.cuda.stream(streams[i % 3]):
            torch.cuda._sleep(20000)
            results.append(own(given[i % 2])[0])
    torch.cuda.synchronize()
    assert all(torch.equal(r, want[i % 2]) for i, r in enumerate(results))


def together(count: int, work: Callable[[int], None]) -> None:
    """Run it in threads that begin at once; raises what one of them did."""
    ready, faults = threading.Barrier(count), list[BaseException]()

    def run(i: int) -> None:
        try:
            ready.wait()
            work(i)
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if faults:
        raise faults[0]


@gpu_only
@pytest.mark.parametrize("streams", [False, True], ids=["one stream", "own streams"])
def test_threads_share_a_program(device: str, streams: bool) -> None:
    """From its first call on, which records it; each gets the results of its own inputs."""
    given = inputs(6, device)
    want = [r[0].clone() for r in map(program(), given)]
    own = program()
    torch.cuda.synchronize()

    def work(i: int) -> None:
        stream = torch.cuda.Stream() if streams else torch.cuda.current_stream()
        with torch.cuda.stream(stream):
            for turn in range(20):
                found = own(given[(i + turn) % 6])[0]
                stream.synchronize()
                assert torch.equal(found, want[(i + turn) % 6]), "another thread's result"

    together(6, work)


@gpu_only
def test_threads_begin_programs_at_the_same_time(device: str) -> None:
    """Each records its own while the others record, allocate and wait."""
    given = inputs(4, device)
    want = [r[0].clone() for r in map(program(), given)]
    programs = [program().bind() for _ in given]
    torch.cuda.synchronize()

    def work(i: int) -> None:
        for _ in range(3):
            found = programs[i](given[i])[0]
            scratch = torch.empty(1 << 22, device=device).fill_(1.0)
            assert torch.equal(found, want[i]) and scratch.sum().item() == 1 << 22

    together(4, work)


@gpu_only
def test_nothing_waits_for_the_gpu_unseen(device: str) -> None:
    """The call returns while the stream is still busy with what came before it."""
    own, (x, y) = program(), inputs(2, device)
    own(x)
    own(y)
    torch.cuda.synchronize()
    with no_waiting():
        own(x)
    done = torch.cuda.Event()
    torch.cuda._sleep(2_000_000_000)
    own(y)
    done.record()
    assert not done.query()
    torch.cuda.synchronize()
