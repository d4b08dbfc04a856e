"""Calls without copies on a GPU, in each launch mode: inputs at new addresses, results of one's own, streams,
threads, the caller's recording, memory."""

from __future__ import annotations

import gc
import threading
import warnings
from typing import Any

import numpy as np
import pytest

import tensor_graphs.egraph.builders.builders as t
from tensor_graphs.backends.program.launch.emission import emit_for, executed
from tensor_graphs.backends.program.program import Program
from tensor_graphs.backends.program.saved_program import load_program
from tensor_graphs.backends.registry import backend
from tensor_graphs.backends.tuning.unfused import direct_plan
from tensor_graphs.egraph.ir.graph import Graph

from . import test_generated_programs as generated

torch = pytest.importorskip("torch")
pytest.importorskip("triton", reason="generated kernels are Triton's")

NO_GPU = backend("torch_cuda").unavailable()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(bool(NO_GPU), reason=NO_GPU or "there is a GPU")]
MODES = ["flat", "graph", "copying"]
each_mode = pytest.mark.parametrize("mode", MODES)
ROWS, WIDTH = generated.ROWS, generated.WIDTH


def library() -> Graph:
    """Library kernels on inputs and results: a product, a view of an input as operand, a result that is a view."""
    x, y, w = (
        t.input("x", (ROWS, WIDTH), "bfloat16"),
        t.input("y", (WIDTH, ROWS), "bfloat16"),
        t.param("w", (WIDTH, WIDTH), "bfloat16"),
    )
    h = t.tanh(t.matmul(x, w))
    return Graph.of([t.matmul(h, y), t.transpose(h), t.transpose(y) + x], inputs=[x, y], name="library")


class Case:
    """A program's source, its weights and inputs, and results of other inputs to compare with."""

    def __init__(self, name: str) -> None:
        if name == "generated":
            self.source = emit_for(generated.plan_of("bfloat16", True)).source
            self.weights: dict[str, Any] = dict(generated.weights("bfloat16"))
            shapes = [(ROWS, WIDTH)]
        else:
            self.source = emit_for(direct_plan(library(), [backend("torch_cuda")])).source
            rng = np.random.default_rng(0)
            drawn = torch.from_numpy(rng.standard_normal((WIDTH, WIDTH)) / 16).bfloat16()
            self.weights = {"w": drawn}
            shapes = [(ROWS, WIDTH), (WIDTH, ROWS)]
        made = torch.Generator().manual_seed(1)
        draw = lambda s: torch.randn(s, generator=made).bfloat16().cuda()
        self.given = [[draw(s) for s in shapes] for _ in range(5)]
        plain = self.bound(graph=False)
        self.want = [[r.clone() for r in plain(*xs)] for xs in self.given]

    def bound(self, graph: bool = True, launch_mode: str = "") -> Any:
        """The emitted program's own callable."""
        return executed(self.source, "case")["bind"](self.weights, None, "cuda", graph, launch_mode)

    def check(self, found: Any, i: int) -> None:
        """The results of the i-th inputs, bit by bit."""
        assert all(torch.equal(a, b) for a, b in zip(found, self.want[i], strict=True))


@pytest.fixture(scope="module", params=["generated", "library"])
def case(request: pytest.FixtureRequest) -> Case:
    return Case(request.param)


@each_mode
def test_inputs_at_new_addresses(case: Case, mode: str) -> None:
    run, kept = case.bound(launch_mode=mode), []
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "error", message="calls of this program"
        )  # a program that cannot do without copies says so
        for turn in range(30):
            given = [x.clone() for x in case.given[turn % 5]]
            kept.append((turn % 5, given, run(*given)))
    assert run.launch_mode == mode and run.ready
    torch.cuda.synchronize()
    for i, given, found in kept:
        case.check(found, i)
        assert all(torch.equal(a, b) for a, b in zip(given, case.given[i])), "an input was written"
    places = {r.data_ptr() for _, _, found in kept for r in found}
    assert len(places) == len(kept) * len(case.want[0]), "results share memory"


def test_library_kernels_use_the_callers_memory() -> None:
    """Addresses of float32 operands and results are found among the parameters; nothing is copied then."""
    x, y = t.input("x", (ROWS, WIDTH)), t.input("y", (WIDTH, ROWS))
    graph = Graph.of([t.matmul(t.tanh(t.matmul(x, y)), x), t.tanh(x)], inputs=[x, y], name="wide")
    source = emit_for(direct_plan(graph, [backend("torch_cuda")])).source
    run, plain = (executed(source, "case")["bind"]({}, None, "cuda", *how) for how in ((True, "graph"), (False,)))
    made = torch.Generator("cuda").manual_seed(2)
    for _ in range(4):
        given = [torch.randn(s, generator=made, device="cuda") for s in ((ROWS, WIDTH), (WIDTH, ROWS))]
        for found, wanted in zip(run(*given), plain(*given), strict=True):
            assert torch.equal(found, wanted)
    assert run.found and run.copied < run.library, (run.why_copied, run.copied)


def test_the_way_is_chosen_by_time(case: Case) -> None:
    run = case.bound()
    for i in (0, 1, 2):
        case.check(run(*case.given[i]), i)
    assert (
        set(run.times) == set(MODES)
        and run.launch_mode in MODES
        and run.times[run.launch_mode] <= 1.03 * min(run.times.values())
    )


@each_mode
def test_generated_programs_are_launched_by_the_driver(mode: str) -> None:
    case = Case("generated")
    run = case.bound(launch_mode=mode)
    run(*case.given[0])
    assert run.complete and len(run.kernels.table) == 5 * generated.LAYERS
    assert sum(one.touches for one in run.kernels.table) >= 2  # those that read x, write the results


@each_mode
def test_inputs_may_lie_anyhow(case: Case, mode: str) -> None:
    """Transposed, at an odd address, repeated, on the host, with gradients."""
    run = case.bound(launch_mode=mode)
    run(*case.given[0])
    for i in (1, 2):
        x, *rest = case.given[i]
        wide = torch.zeros((ROWS, WIDTH + 3), device="cuda", dtype=x.dtype)
        wide[:, 3:] = x
        odd = torch.zeros(x.numel() + 1, device="cuda", dtype=x.dtype)[1:].view_as(x)
        odd.copy_(x)
        for other in (x.t().contiguous().t(), wide[:, 3:], odd, x.cpu(), x.clone().requires_grad_()):
            found = run(other, *rest)
            case.check(found, i)
            assert not any(r.requires_grad for r in found)
    row = case.given[0][0][:1].expand(ROWS, WIDTH)
    assert all(torch.equal(a, b) for a, b in zip(run(row, *rest), run(row.contiguous(), *rest)))


@each_mode
def test_a_result_may_be_given_back(mode: str) -> None:
    case = Case("generated")
    run, plain = case.bound(launch_mode=mode), case.bound(graph=False)
    x = want = case.given[0][0]
    for _ in range(4):
        x, want = run(x)[0], plain(want)[0]
        assert torch.equal(x, want)


@each_mode
def test_streams_and_threads(case: Case, mode: str) -> None:
    run = case.bound(launch_mode=mode)
    run(*case.given[0])
    torch.cuda.synchronize()

    def work(k: int) -> None:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for turn in range(30):
                i = (k + turn) % 5
                torch.cuda._sleep(2000)
                found = run(*[x.clone() for x in case.given[i]])
                stream.synchronize()
                case.check(found, i)

    generated.together(4, work)


@each_mode
def test_two_streams_of_one_thread(case: Case, mode: str) -> None:
    run = case.bound(launch_mode=mode)
    run(*case.given[0])
    streams = [torch.cuda.Stream() for _ in range(2)]
    torch.cuda.synchronize()
    results = []
    for turn in range(40):
        with torch.cuda.stream(streams[turn % 2]):
            torch.cuda._sleep(20000)
            results.append((turn % 5, run(*case.given[turn % 5])))
    torch.cuda.synchronize()
    for i, found in results:
        case.check(found, i)


@each_mode
def test_it_becomes_part_of_the_callers_graph(case: Case, mode: str) -> None:
    run = case.bound(launch_mode=mode)
    run(*case.given[0])
    run(*case.given[1])
    places = [x.clone() for x in case.given[0]]
    recorded = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(recorded):
        results = run(*places)
    for i in (1, 2, 0):
        for place, x in zip(places, case.given[i]):
            place.copy_(x)
        recorded.replay()
        case.check(results, i)
        case.check(run(*case.given[3]), 3)


@each_mode
def test_programs_side_by_side(mode: str) -> None:
    """Several programs, each with its own workspace and graph, called in turn on streams of their own."""
    cases = [Case("generated"), Case("library"), Case("generated")]
    runs = [c.bound(launch_mode=mode) for c in cases]
    streams = [torch.cuda.Stream() for _ in runs]
    torch.cuda.synchronize()
    results = []
    for turn in range(20):
        for c, run, stream in zip(cases, runs, streams):
            with torch.cuda.stream(stream):
                results.append((c, turn % 5, run(*c.given[turn % 5])))
    torch.cuda.synchronize()
    for c, i, found in results:
        c.check(found, i)


@each_mode
def test_a_call_does_not_wait_on_the_host(case: Case, mode: str) -> None:
    run = case.bound(launch_mode=mode)
    run(*case.given[0])
    run(*case.given[1])
    torch.cuda.synchronize()
    done = torch.cuda.Event()
    torch.cuda._sleep(2_000_000_000)
    run(*case.given[2])
    done.record()
    assert not done.query()
    torch.cuda.synchronize()


@each_mode
def test_memory_is_freed(case: Case, mode: str) -> None:
    case.bound(launch_mode=mode)(*case.given[0])
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    for _ in range(3):
        run = case.bound(launch_mode=mode)
        for i in range(5):
            run(*case.given[i])
        del run
        gc.collect()
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() <= before + (1 << 20)


@each_mode
def test_states_are_not_advanced_by_timing(mode: str) -> None:
    x, s = t.input("x", (1024,)), t.state("s", (1024,))
    program = Program(direct_plan(Graph.of(s + x, updates={"s": s + x}), [backend("torch_cuda")]))
    ones = torch.ones(1024, device="cuda")
    for count in range(1, 5):
        assert program(ones)[0].item() == count
    program.reset()
    state = program.states["s"]
    assert program(ones)[0].item() == 1 and program(state)[0].item() == 2  # s itself as the input: s + s
    assert program.get_state("s")[0] == 2


def test_a_saved_program_keeps_its_way(tmp_path: Any) -> None:
    program = generated.program()
    (x,) = generated.inputs(1, "cuda")
    want = program(x)[0]
    program(x)
    folder = program.save(tmp_path / "p")
    loaded = load_program(folder)
    assert loaded.manifest.launch_mode == program._run.launch_mode != ""  # type: ignore[union-attr]
    assert torch.equal(loaded(x)[0], want) and torch.equal(loaded(x)[0], want)
    assert not loaded._run.times  # type: ignore[union-attr]


def test_inference_mode_comes_and_goes() -> None:
    program = generated.program()
    (x,) = generated.inputs(1, "cuda")
    with torch.inference_mode():
        want = program(x)[0].clone()
        assert torch.equal(program(x)[0], want)
    assert torch.equal(program(x)[0], want) and torch.equal(program(x.cpu().cuda())[0], want)


def test_a_fresh_thread_has_no_context_yet() -> None:
    case = Case("generated")
    run, faults = case.bound(launch_mode="flat"), list[BaseException]()
    run(*case.given[0])
    torch.cuda.synchronize()

    def work() -> None:
        try:
            case.check(run(*case.given[1]), 1)
        except BaseException as fault:
            faults.append(fault)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert not faults, faults


@each_mode
def test_the_second_gpu(case: Case, mode: str) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU")
    run = executed(case.source, "case")["bind"](case.weights, None, "cuda:1", True, mode)
    for i in range(3):
        found = run(*[x.to("cuda:1") for x in case.given[i]])
        case.check([r.to("cuda:0") for r in found], i)
