"""What a program on a GPU promises: replay is the same as launching, nothing of one call is left in the next, the
caller's stream and the caller's own recording are respected, and nothing waits for the GPU unseen."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

import tensor_graphs.egraph.builders.builders as t
from tensor_graphs.backends.program.launch.emission import emit_for, executed
from tensor_graphs.backends.program.program import Program
from tensor_graphs.backends.registry import backend
from tensor_graphs.backends.tuning.unfused import direct_plan
from tensor_graphs.egraph.composites import composite_ops as c
from tensor_graphs.egraph.ir.graph import Graph

from ...no_waiting import no_waiting

torch = pytest.importorskip("torch")

NO_GPU = backend("torch_cuda").unavailable()
on_gpu = [pytest.mark.gpu, pytest.mark.skipif(bool(NO_GPU), reason=NO_GPU or "there is a GPU")]
DEVICES = ["cpu", pytest.param("cuda", marks=on_gpu)]


def model() -> Graph:
    """Norm, products, attention, a fresh result in the middle, a view as output, a state that counts."""
    x, w, g = t.input("x", (2, 8, 64), "float16"), t.param("w", (64, 64), "float16"), t.param("g", (64,), "float16")
    n = t.state("n", (1,))
    h = t.matmul(c.rms_norm(x, g, eps=1e-6), w)
    q = t.permute(t.reshape(h, (2, 8, 4, 16)), (0, 2, 1, 3))
    a = c.attention(q, q, q, scale=0.25, causal=True)
    y = t.reshape(t.permute(a, (0, 2, 1, 3)), (2, 8, 64)) + x
    return Graph.of([y, t.transpose(y), n * 1.0], updates={"n": n + 1.0}, inputs=[x], name="model")


def weights() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {"w": (rng.standard_normal((64, 64)) / 8).astype(np.float16), "g": np.ones(64, np.float16)}


def inputs(count: int, device: str) -> list[Any]:
    made = torch.Generator().manual_seed(1)
    return [torch.randn((2, 8, 64), generator=made).half().to(device) for _ in range(count)]


def bound(device: str, graph: bool = True, reuse: bool = False) -> Any:
    """The emitted source's own callable."""
    emitted = emit_for(direct_plan(model(), [backend("torch_cuda")]), reuse_outputs=reuse)
    return executed(emitted.source, "model")["bind"](weights(), {}, device, graph)


def poison(run: Any) -> None:
    """Fill the workspace with NaN."""
    held = inspect.getclosurevars(run.launch).nonlocals.items()
    shared = [v for name, v in held if isinstance(v, torch.Tensor) and name not in ("w", "g", "n")]
    storages = {s.data_ptr(): s for v in shared if (s := v.untyped_storage())}
    assert storages, "the workspace was not found"
    for storage in storages.values():
        torch.empty(0, dtype=torch.uint8, device=shared[0].device).set_(storage).fill_(255)


@pytest.mark.parametrize("device", DEVICES)
def test_nothing_of_the_workspace_survives_from_call_to_call(device: str) -> None:
    run, (x, y) = bound(device), inputs(2, device)
    want = [r.clone() for r in run(x)[:2]]
    for _ in range(3):
        run(y)
        poison(run)
        torch.testing.assert_close(run(x)[:2], tuple(want), rtol=0, atol=0)


@pytest.mark.parametrize("device", DEVICES)
def test_replay_is_the_same_as_launching(device: str) -> None:
    replayed, launched = bound(device), bound(device, graph=False)
    for i, x in enumerate(inputs(4, device)):
        found, want = replayed(x), launched(x)
        assert found[2].item() == i  # the first call counts once, though it also records
        torch.testing.assert_close(found, want, rtol=0, atol=0)


@pytest.mark.parametrize("device", DEVICES)
def test_a_result_that_is_reused_may_be_the_next_input(device: str) -> None:
    """It is in memory that the call writes, so it is copied first."""
    run, kept, (x,) = bound(device, reuse=True), bound(device), inputs(1, device)
    found, want = x, x
    for _ in range(3):
        found, want = run(found)[0], kept(want)[0]
        torch.testing.assert_close(found, want, rtol=0, atol=0)


gpu_only = pytest.mark.parametrize("device", DEVICES[1:])


@gpu_only
def test_a_program_becomes_part_of_the_callers_graph(device: str) -> None:
    run, (x, y) = bound(device), inputs(2, device)
    want = [run(v)[0].clone() for v in (x, y)]
    place = x.clone()
    recorded = torch.cuda.CUDAGraph()
    with torch.cuda.graph(recorded):
        result = run(place)[0] * 2
    for value, expected in ((y, want[1]), (x, want[0])):
        place.copy_(value)
        recorded.replay()
        torch.testing.assert_close(result, expected * 2, rtol=0, atol=0)
    torch.testing.assert_close(run(y)[0], want[1], rtol=0, atol=0)


@gpu_only
def test_calls_on_several_streams_follow_each_other(device: str) -> None:
    run, given = bound(device), inputs(2, device)
    want = [run(v)[0].clone() for v in given]
    streams = [torch.cuda.Stream() for _ in range(3)]
    torch.cuda.synchronize()
    results = []
    for i in range(60):
        with torch.cuda.stream(streams[i % 3]):
            torch.cuda._sleep(20000)
            results.append(run(given[i % 2])[0])
    torch.cuda.synchronize()
    for i, r in enumerate(results):
        torch.testing.assert_close(r, want[i % 2], rtol=0, atol=0)


@gpu_only
def test_nothing_waits_for_the_gpu_unseen(device: str) -> None:
    program, (x, y) = Program(direct_plan(model(), [backend("torch_cuda")]), weights()), inputs(2, device)
    program(x)
    with no_waiting():
        first, second = program(x), program(y)
    torch.cuda.synchronize()
    assert not torch.equal(first[0], second[0])


@gpu_only
def test_a_call_does_not_wait_on_the_host(device: str) -> None:
    """The call returns while the stream is still busy with what came before it."""
    program, (x,) = Program(direct_plan(model(), [backend("torch_cuda")]), weights()), inputs(1, device)
    program(x)
    program(x)
    torch.cuda.synchronize()
    done = torch.cuda.Event()
    torch.cuda._sleep(2_000_000_000)
    program(x)
    done.record()
    assert not done.query()
    torch.cuda.synchronize()


@gpu_only
def test_memory_is_what_was_said(device: str) -> None:
    graph = large()
    program = Program(direct_plan(graph, [backend("torch_cuda")]), {"w": np.ones((1024, 1024), np.float32)})
    x = torch.ones((4096, 1024), device=device)
    torch.ones((8, 8), device=device) @ torch.ones((8, 8), device=device)  # the library's own workspace
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    kept = [program(x) for _ in range(3)]
    taken = torch.cuda.max_memory_allocated() - before
    message = program.memory()["cuda"] + 2 * sum(k.nbytes for k in kept[1:])
    assert taken < 1.3 * message + (64 << 20)
    del kept, program
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() - before < 64 << 20


def large() -> Graph:
    x, w = t.input("x", (4096, 1024)), t.param("w", (1024, 1024))
    return Graph.of(t.tanh(t.matmul(t.tanh(t.matmul(x, w)), w)), name="large")


@gpu_only
def test_the_second_gpu(device: str) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU")
    program = Program(direct_plan(model(), [backend("torch_cuda")]), weights(), device="cuda:1")
    reference = Program(direct_plan(model(), [backend("torch_cuda")]), weights(), device="cuda:0")
    (x,) = inputs(1, "cuda:1")
    for _ in range(3):
        found = program(x)[0]
        assert found.device.index == 1
        torch.testing.assert_close(found.cpu(), reference(x.to("cuda:0"))[0].cpu(), rtol=0, atol=0)


def test_the_emitted_launch_makes_nothing_but_fresh_results() -> None:
    """All memory that kernels write is there from `bind` on, or given."""
    source = emit_for(direct_plan(large(), [backend("torch_cuda")])).source
    body = source.partition("def launch(x, v5):")[2].partition("return Calls")[0]
    assert body.count("out=") == 4 and "out=v5" in body and "empty" not in body and "tensor_at" not in body
