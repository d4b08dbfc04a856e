"""The backend as a whole: who wins, searches in the background, options, reports, registration, processes."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tensor_graphs as tg
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.errors import UsageError
from tensor_graphs.torch_compile import compiled_graph, judge, search
from tensor_graphs.torch_compile.report import SEARCHED, SEARCHING, GraphReport, PartReport, TracedReport

from .quick_searches import QUICK, timed

torch = pytest.importorskip("torch")
nn = torch.nn
pytestmark = pytest.mark.usefixtures("fresh_dynamo")

BEHIND = {**QUICK, "wait": False}


def model() -> Any:
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)).eval()


def called(compiled: Any, a: Any) -> Any:
    with torch.no_grad():
        return compiled(a)


def report() -> Any:
    found = tg.torch_compile.last_report()
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("eager", "program", "runs"), [(100.0, 101.0, "eager"), (100.0, 99.5, "eager"), (100.0, 50.0, "program")]
)
def test_programs_run_only_if_whole_calls_are_faster(
    eager: float, program: float, runs: str, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.setattr(judge, "timed", timed(eager, program))
    module, a = model(), torch.randn(3, 8)
    compiled = tg.compile(module, **QUICK)
    for _ in range(2):
        torch.testing.assert_close(called(compiled, a), called(module, a))
    assert report().runs == runs and (report().eager_us, report().program_us) == (eager, program)
    assert f"{program:.1f} µs" in report().why


def test_a_program_that_is_wrong_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge, "timed", timed(2.0, 1.0))
    program = search.Search.program

    class Wrong:
        def __init__(self, base: Any) -> None:
            self.manifest, self.flat = base.manifest, lambda *args: [x + 0.5 for x in base.flat(*args)]

    monkeypatch.setattr(search.Search, "program", lambda self: Wrong(program(self)))
    module, a = model(), torch.randn(3, 8)
    compiled = tg.compile(module, **QUICK)
    with pytest.warns(UserWarning, match="is off by"):
        torch.testing.assert_close(called(compiled, a), called(module, a))
    assert report().runs == "eager" and "not used" in report().traced[0].parts[0].state


def test_a_search_runs_behind_calls_and_the_program_is_swapped_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge, "timed", timed(2.0, 1.0))
    module, a = model(), torch.randn(3, 8)
    compiled = tg.compile(module, **BEHIND)
    expected = called(module, a)
    results: list[Any] = [called(compiled, a)]
    assert report().runs == "searching"  # the first call did not wait
    stop = threading.Event()

    def call() -> None:
        while not stop.wait(0.01):
            results.append(called(compiled, a))

    threads = [threading.Thread(target=call) for _ in range(2)]
    for thread in threads:
        thread.start()
    until = time.monotonic() + 300
    while report().runs == "searching" and time.monotonic() < until:
        time.sleep(0.05)
    stop.set()
    for thread in threads:
        thread.join()
    results.append(called(compiled, a))
    assert report().runs == "program", report()
    for result in results:
        torch.testing.assert_close(result, expected)
    assert tg.torch_compile.wait(0)


@pytest.mark.parametrize(("options", "message"), [({"timeout": 0.01}, "killed after 0.01 s"), ({}, "ended with code")])
def test_a_search_that_crashes_or_hangs_leaves_eager_with_a_warning(
    options: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.setattr(search, "WORKER", "tensor_graphs.no_such_module" if not options else search.WORKER)
    module, a = model(), torch.randn(3, 8)
    compiled = tg.compile(module, **BEHIND, **options)
    called(compiled, a)
    assert tg.torch_compile.wait(300)
    with pytest.warns(UserWarning, match=message):
        torch.testing.assert_close(called(compiled, a), called(module, a))
    assert report().runs == "eager" and message in report().why
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        called(compiled, a)


def test_processes_share_plans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second search, in a process of its own, finds the plan of the first."""
    monkeypatch.setattr(judge, "timed", timed(2.0, 1.0))
    a, states = torch.randn(3, 7), []
    # time to compare the plan with the graph as it is written, in the first search
    more = {"measure": True, "budget": 30, "backend": "torch", "costdb": tmp_path}
    for options in (QUICK | more, BEHIND | more):
        torch._dynamo.reset()
        module = nn.Sequential(nn.Linear(7, 9), nn.Sigmoid(), nn.Linear(9, 5)).eval()  # other weights
        compiled = tg.compile(module, **options)
        called(compiled, a)
        assert tg.torch_compile.wait(300)
        torch.testing.assert_close(called(compiled, a), called(module, a))
        states.append(report().traced[0].parts[0].state)
    assert "cache" not in states[0] and states[1] == f"{states[0]}, its plan from the cache"


def test_a_saved_program_that_is_damaged_leaves_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    load = search.load_program

    def damaged(folder: Path, **named: Any) -> Any:
        (folder / "weights.safetensors").write_bytes(b"damaged")
        return load(folder, **named)

    monkeypatch.setattr(search, "load_program", damaged)
    module, a = model(), torch.randn(3, 8)
    compiled = tg.compile(module, **BEHIND)
    called(compiled, a)
    assert tg.torch_compile.wait(300)
    with pytest.warns(UserWarning, match="graph"):
        torch.testing.assert_close(called(compiled, a), called(module, a))
    assert report().runs == "eager" and "no program" in report().traced[0].parts[0].state


def test_unknown_options_have_a_named_error() -> None:
    with pytest.raises(UsageError, match="no_such_option"):
        tg.compile(model(), no_such_option=1)
    with pytest.raises(UsageError, match="the option budget is 'long'"):
        tg.compile(model(), budget="long")
    for options, error in (
        ({"budget": -1}, "budget=-1"), ({"tolerance": "lax"}, "tolerance 'lax'"), ({"backend": "none"}, "no backend"),
        ({"least": -1}, "least is"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=error):
            tg.compile(torch.nn.Linear(2, 2), **options)  # type: ignore[arg-type]
    for callee, error in ((torch.nn.Linear, "a class"), (3, "not callable"), (None, "not callable")):
        with pytest.raises(UsageError, match=error):
            tg.compile(callee)
    for given in ({"options": {"no_such_option": 1}}, {"mode": "max-autotune"}):
        compiled = torch.compile(model(), backend=tg.torch_compile.backend, **given)
        with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="UsageError") as caught:
            called(compiled, torch.randn(3, 8))
        assert isinstance(caught.value.inner_exception, UsageError)


def test_the_report_names_what_stays_eager_and_what_crosses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge, "timed", timed(2.0, 1.0))

    def function(a: Any) -> Any:
        y = torch.tanh(a) * 2 + 1
        return torch.sigmoid(y + torch.bernoulli(torch.sigmoid(y))) * 3

    called(tg.compile(function, **QUICK), torch.randn(4, 8))
    (traced,) = report().traced
    (island,) = [r for r in traced.islands if "bernoulli" in r.operator]
    assert island.count == 1 and "bernoulli" in island.reason and island.bytes == 2 * 4 * 4 * 8
    assert traced.kind == "inference" and traced.nodes == 8 and sum(p.nodes for p in traced.parts) == 7
    assert "bernoulli" in str(report()) and report().to_json()["runs"] == "program"


def test_a_graph_without_supported_operators_is_eager() -> None:
    compiled = tg.compile(lambda a: torch.bernoulli(a) + 1, **QUICK)
    assert float(called(compiled, torch.ones(3)).sum()) == 6.0
    assert report().runs == "eager" and "enough operators" in report().why


def test_ddp_in_one_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if not torch.distributed.is_available():
        pytest.skip("torch without distributed")
    monkeypatch.setattr(judge, "timed", timed(2.0, 1.0))
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    try:
        module, a = model(), torch.randn(3, 8)
        compiled = tg.compile(nn.parallel.DistributedDataParallel(module), **QUICK)
        for _ in range(2):
            compiled(a).sum().backward()
        found = [p.grad.clone() / 2 for p in module.parameters()]
        module.zero_grad()
        module(a).sum().backward()
        torch.testing.assert_close(found, [p.grad for p in module.parameters()])
    finally:
        torch.distributed.destroy_process_group()


# ---------------------------------------------------------------- other processes
def python(code: str, seconds: float = 600) -> subprocess.CompletedProcess[str]:
    known = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=known, timeout=seconds, check=False
    )


Forked = Callable[[str], subprocess.CompletedProcess[str]]

FORKS = """
import json, os, sys
import torch._dynamo, torch._inductor, tensor_graphs.torch_compile.search
for line in sys.stdin:
    code, out, err = json.loads(line)
    if (child := os.fork()) == 0:
        for file, number in ((out, 1), (err, 2)):
            os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), number)
        exec(code)
        break
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.fixture(scope="module")
def fork(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forked]:
    """Runs code in a process of its own, forked from one that has imported PyTorch, and waits for its end."""
    folder = tmp_path_factory.mktemp("forks")
    out, err = folder / "out", folder / "err"
    known = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.Popen(
        [sys.executable, "-c", FORKS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=known
    )
    assert process.stdin is not None and process.stdout is not None

    def run(code: str) -> subprocess.CompletedProcess[str]:
        for file in (out, err):
            file.unlink(missing_ok=True)
        process.stdin.write(json.dumps([code, str(out), str(err)]) + "\n")
        process.stdin.flush()
        status = int(process.stdout.readline())
        return subprocess.CompletedProcess([], status, out.read_text(), err.read_text())

    yield run
    process.stdin.close()
    process.wait()
    process.stdout.close()


def test_the_entry_point_registers_the_backend(fork: Forked, tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    if not (root / "pyproject.toml").is_file():
        pytest.skip("pyproject.toml is not part of the installed package")
    import tomllib

    points = tomllib.loads((root / "pyproject.toml").read_text())["project"]["entry-points"]["torch_dynamo_backends"]
    info = tmp_path / "tg_backend-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tg-backend\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[torch_dynamo_backends]\n" + "".join(f"{n} = {v}\n" for n, v in points.items())
    )
    done = fork(
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "import torch, tensor_graphs as tg\n"
        "print('tensor_graphs' in torch._dynamo.list_backends())\n"
        "print(torch._dynamo.lookup_backend('tensor_graphs') is tg.torch_compile.backend)"
    )
    assert done.stdout.split() == ["True", "True"], done.stderr


def test_nothing_is_left_at_exit_and_a_forked_child_goes_on_eagerly(fork: Forked) -> None:
    """The parent exits during a search; its child, forked before, has called the compiled function."""
    done = fork(
        "import os, time, torch, warnings, tensor_graphs as tg\n"
        "from tensor_graphs.torch_compile import search\n"
        "warnings.simplefilter('ignore')\n"
        "f = tg.compile(lambda a: torch.tanh(a) * 2 + 1, budget=60)\n"
        "a = torch.ones(4)\n"
        "f(a)\n"
        "while not search._running: time.sleep(0.01)\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    f(a)\n"
        "    os._exit(0 if tg.torch_compile.last_report().runs == 'eager' else 1)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
        "print(next(iter(search._running)).pid, search._root[0])\n"
    )
    code, pid, folder = done.stdout.split()
    assert code == "0", done.stderr
    assert not Path(folder).exists()
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid), 0)


@pytest.mark.skipif(sys.platform != "linux", reason="a signal at the parent's end")
@pytest.mark.parametrize(
    "end", ["os.kill(os.getpid(), signal.SIGTERM)", "os.kill(os.getpid(), signal.SIGKILL)", "os._exit(3)"]
)
def test_nothing_is_left_where_the_process_ends_at_once(end: str, fork: Forked) -> None:
    """No function of `atexit` runs; the search process removes the folder of all searches, and ends."""
    done = fork(
        "import os, signal, time, torch, warnings, tensor_graphs as tg\n"
        "from tensor_graphs.torch_compile import search\n"
        "warnings.simplefilter('ignore')\n"
        "tg.compile(lambda a: torch.tanh(a) * 2 + 1, budget=60)(torch.ones(4))\n"
        "tg.compile(lambda a: torch.exp(a) * 3 + 1, budget=60)(torch.ones(4))\n"
        "while not search._running: time.sleep(0.01)\n"
        "pid, folder = next(iter(search._running)).pid, search._root[0]\n"
        "while not int(open(f'/proc/{pid}/status').read().partition('SigCgt:')[2].split()[0], 16) & 0x800: time.sleep(0.01)\n"
        "print(pid, folder, flush=True)\n" + end + "\n"
    )
    pid, folder = done.stdout.split()
    until = time.monotonic() + 60
    while (Path(folder).exists() or Path(f"/proc/{pid}/cmdline").exists()) and time.monotonic() < until:
        time.sleep(0.05)
    assert not Path(folder).exists(), done.stderr
    assert not (Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_bytes())


def test_nothing_is_left_by_a_child_process_of_multiprocessing(fork: Forked) -> None:
    """Such a child ends without the functions of `atexit`; it ends during a search."""
    done = fork(
        "import multiprocessing, time, torch, warnings, tensor_graphs as tg\n"
        "from tensor_graphs.cache_folder import _temporary_folder\n"
        "from tensor_graphs.torch_compile import search\n"
        "warnings.simplefilter('ignore')\n"
        "def child(send):\n"
        "    tg.compile(lambda a: torch.tanh(a) * 2 + 1, budget=60)(torch.ones(4))\n"
        "    while not search._running: time.sleep(0.01)\n"
        "    send.send((next(iter(search._running)).pid, str(search._root[0]), str(_temporary_folder())))\n"
        "fork = multiprocessing.get_context('fork')\n"
        "receive, send = fork.Pipe(False)\n"
        "process = fork.Process(target=child, args=(send,))\n"
        "process.start()\n"
        "print(*receive.recv())\n"
        "process.join()\n"
    )
    pid, *folders = done.stdout.split()
    assert folders and not any(Path(f).exists() for f in folders), done.stderr
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid), 0)


def test_a_forked_child_leaves_the_parent_its_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search ends, the process forks (as a DataLoader does), and both load the program."""
    monkeypatch.setattr(search, "load_program", lambda folder, **named: SimpleNamespace(bind=folder.iterdir))
    ended = search.Search(Graph((), (), ()), {}, tg.torch_compile.CompileOptions(), "cpu", lambda: True)
    monkeypatch.setattr(ended, "_subprocess", lambda folder: "")
    ended.run_in_subprocess(tmp_path)
    (tmp_path / "program").mkdir()
    if (child := os.fork()) == 0:
        try:
            ended.program()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert (tmp_path / "program").exists()
    ended.program()
    assert not tmp_path.exists()


def test_a_program_that_nobody_loads_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a module that is freed, or weights that change, after the search has ended. They held all weights until the
    process ended, and the last search its program until the next one."""
    jobs: queue.SimpleQueue[search.Search] = queue.SimpleQueue()
    monkeypatch.setattr(search.Search, "_subprocess", lambda self, folder: "")
    monkeypatch.setattr(search, "_root", [tmp_path])
    server = threading.Thread(target=search._serve, args=(jobs, tmp_path), daemon=True)
    server.start()
    unloaded = search.Search(Graph((), (), ()), {}, tg.torch_compile.CompileOptions(), "cpu", lambda: True)
    jobs.put(unloaded)
    assert unloaded.wait(60) and (tmp_path / "1").is_dir()
    del unloaded
    until = time.monotonic() + 60
    while (tmp_path / "1").exists():
        assert time.monotonic() < until
        time.sleep(0.01)
    search._root.clear()  # ends the thread
    jobs.put(search.Search(Graph((), (), ()), {}, tg.torch_compile.CompileOptions(), "cpu", lambda: True))
    server.join(60)
    assert not server.is_alive()


def test_importing_the_backend_does_not_import_torch() -> None:
    done = python(
        "import sys, tensor_graphs as tg; tg.torch_compile.backend, tg.compile; print('torch' in sys.modules)"
    )
    assert done.stdout.strip() == "False", done.stderr


def test_a_report_tells_that_its_search_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """It said "the search has not ended" until the next call, which graphs of sizes that do not recur never get."""
    monkeypatch.setattr(search.Search, "run_in_subprocess", lambda self, folder: self.run_here())
    compiled, a = tg.compile(model(), **BEHIND), torch.randn(3, 8)
    called(compiled, a)
    assert tg.torch_compile.wait(300)
    assert report().to_json()["why"] == "the search has ended: the next call of this graph decides", report()
    called(compiled, a)
    assert "next call" not in str(report())


def test_a_search_that_was_abandoned_tells_nothing_about_its_part(tmp_path: Path) -> None:
    """Another search for the same part goes on; and parts without a search of their own wait for no end."""
    for abandoned in (False, True):
        part = PartReport(1, 0, 0)
        one = search.Search(Graph((), (), ()), {}, tg.torch_compile.CompileOptions(), "cpu", lambda: False)
        one.abandoned, one.at_end = abandoned, lambda part=part: setattr(part, "state", SEARCHED)  # type: ignore[misc]
        (tmp_path / str(abandoned)).mkdir()
        one.run_in_subprocess(tmp_path / str(abandoned))
        assert one.ended and part.state == (SEARCHING if abandoned else SEARCHED)
        other = PartReport(1, 0, 0, state="not imported: no")
        ended = "has ended" in str(GraphReport("graph", traced=[TracedReport("inference", 2, parts=[part, other])]))
        assert ended != abandoned


def test_waiting_tells_that_a_backward_search_is_still_to_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search.Search, "run_in_subprocess", lambda self, folder: self.run_here())
    module, a = nn.Sequential(nn.Linear(8, 8), nn.Tanh()), torch.randn(3, 8)
    compiled, steps = tg.compile(module, **BEHIND), 0
    while not steps or not tg.torch_compile.wait(300):
        compiled(a).sum().backward()
        steps += 1
        assert steps < 5
    assert steps > 1 and [t.kind for t in report().traced] == ["forward", "backward"]


def test_each_bucket_of_sizes_is_judged_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs of small sizes lose, those of large ones win."""
    from tensor_graphs.pipeline.sizes import size_buckets

    monkeypatch.setattr(size_buckets, "on_gpu", lambda backends: True)
    monkeypatch.setattr(size_buckets, "BOUNDS", (16,))
    monkeypatch.setattr(size_buckets, "MIN_BUDGET_SHARE", 2.0)  # no plans of their own
    rows = [0]
    monkeypatch.setattr(judge, "faster", lambda eager, program, gpu, first: (program() is not None and rows[0] > 16, 2.0, 1.0, ""))  # fmt: skip
    module = model()
    compiled = torch.compile(module, backend="tensor_graphs", options={**QUICK, "measure": True})
    for rows[0] in (40, 40, 5, 5, 90, 7):
        a = torch.randn(rows[0], 8)
        torch._dynamo.mark_dynamic(a, 0)
        torch.testing.assert_close(called(compiled, a), called(module, a))
    graph = max(compiled_graph._graphs, key=lambda g: int(g.report.name.removeprefix("graph")))
    states = {next(iter(v.within.values())): v.state for v in graph.traced[0].variants}
    assert {(low, state) for (low, _), state in states.items()} == {(2, "lost"), (17, "program")}


def test_a_search_process_has_the_settings_and_the_gpu_lock_of_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(search.LOCK, raising=False)
    monkeypatch.setenv("TENSOR_GRAPHS_THREADS", "3")
    with tg.settings.override(check_weights=0, threads=0):
        found = search._environment()
    assert found["TENSOR_GRAPHS_CHECK_WEIGHTS"] == "0" and "TENSOR_GRAPHS_THREADS" not in found
    assert found[search.LOCK] == search.own_lock()
    monkeypatch.setenv(search.LOCK, "shared")
    found = search._environment()
    assert found["TENSOR_GRAPHS_THREADS"] == "3" and found[search.LOCK] == "shared"
    assert "TENSOR_GRAPHS_CHECK_WEIGHTS" not in found
