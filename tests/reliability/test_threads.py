"""Several optimizations, and calls of programs, in the threads of one process: each is as if it were alone."""

from __future__ import annotations

import asyncio
import builtins
import copy
import gc
import importlib
import linecache
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
import torch

import tensor_graphs as tg
import tensor_graphs.egraph.builders.builders as t
from tensor_graphs import cache_folder, settings
from tensor_graphs import imported as imported_module
from tensor_graphs.backends.generate import lowering_pool as lower_pool
from tensor_graphs.backends.generate.lowering_pool import LowerPool
from tensor_graphs.backends.generate.lowerings import Lowerings
from tensor_graphs.backends.library.torch_cuda import BACKEND as LIBRARIES
from tensor_graphs.backends.program.helpers.gpu_helpers import HELPERS
from tensor_graphs.backends.runtime.threads import one_blas_thread
from tensor_graphs.backends.runtime.views import view_strides
from tensor_graphs.backends.triton.backend import BACKEND as TRITON
from tensor_graphs.backends.tuning.compile_pool import CompilePool
from tensor_graphs.costdb.store.store import Store
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.view.view import view_of
from tensor_graphs.errors import UsageError, warned, warnings_into
from tensor_graphs.extract.candidates.candidates import candidate_hypergraph
from tensor_graphs.extract.model.gc_pause import gc_paused
from tensor_graphs.imported import imported
from tensor_graphs.models.torch_export import aten_recurrent
from tensor_graphs.torch_compile.compiled_graph import CompiledGraph
from tensor_graphs.torch_compile.options import CompileOptions

from ..fuzz.soak import LIMITS, graph
from ..waiting import wait_for

T = TypeVar("T")
TOLERANCES = ("eager", "fast", 1e-3, 1e-5)


@pytest.fixture(autouse=True)
def forked_workers() -> None:
    """Measuring processes are started as users' are: what calls leave is tested here."""


def together(jobs: Sequence[Callable[[], T]]) -> list[T]:
    """What jobs return that all begin at once, in a thread each."""
    ready = threading.Barrier(len(jobs))

    def run(job: Callable[[], T]) -> T:
        ready.wait(60)
        return job()

    with ThreadPoolExecutor(len(jobs)) as pool:
        return [f.result() for f in [pool.submit(run, job) for job in jobs]]


def optimized(seed: int, costdb: Path, **more: Any) -> tg.Program:
    expression, params = graph(seed, stages=2)
    more = {"tolerance": TOLERANCES[seed % len(TOLERANCES)], "budget": 30.0, "deterministic": True, **more}
    return tg.optimize(expression, params=params, limits=LIMITS, costdb=costdb, **more)


def test_optimizations_in_threads_are_those_made_one_after_another(tmp_path: Path) -> None:
    """The same plans, the same values, and of each call its own tolerance."""
    alone = [optimized(k, tmp_path) for k in range(4)]
    beside = together([lambda k=k: optimized(k, tmp_path) for k in range(4)])  # type: ignore[misc]
    for k, (one, other) in enumerate(zip(alone, beside)):
        assert one.source == other.source and one.report.cost_us == other.report.cost_us
        x = np.random.default_rng(k).standard_normal(one.manifest.inputs[0][1]).astype(np.float32)
        assert np.array_equal(one(x), other(x))
        told = other.report.verification
        assert told["passed"] and told["tolerance"] == TOLERANCES[k % 4] and told["error_after"] <= told["allowed"]


def deep(seed: int) -> Graph:
    """Products of float32 between exponentials and norms, which can be cut into kernels in more than a hundred ways."""
    y = t.input("x", (64, 64))
    for i in range(3):
        y = t.matmul(t.tanh(y * (1.5 + i + 10 * seed)), t.param(f"w{i}", (64, 64)))
        y = t.exp(y - t.max(y, axis=1, keepdims=True)) + 0.1 * (i + 1)
        y = y / t.sum(y, axis=1, keepdims=True)
    return Graph.of(y)


def lowered(seed: int, limit: float, pool: LowerPool) -> list[Any]:
    """The candidates of a graph for kernels that lose so much, and how many regions were asked for."""
    lowerings = Lowerings(limit, pool)
    try:
        made = candidate_hypergraph(view_of(deep(seed)), [LIBRARIES, lowerings.of(TRITON)], view_strides)
    finally:
        pool.close()
    asked = len(lowerings.of(TRITON).answered)
    return [
        asked,
        *((k.template.name, k.template.pattern, k.template.loss, k.outputs, k.inputs) for k in made.candidates),
    ]


def test_kernels_lowered_in_threads_are_those_of_each_call_s_graph_and_tolerance(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """More than a hundred regions each, read by processes beside: nothing of another graph, nothing in another
    precision."""
    monkeypatch.setattr(lower_pool, "MIN_BATCH_JOBS", 20)
    given = [(0, 0.0), (0, 1e-2), (2, 1e-6)]
    alone = [lowered(*one, LowerPool(0)) for one in given]
    assert all(asked > 100 for asked, *_ in alone), [asked for asked, *_ in alone]
    assert len({max(k[2] for k in found[1:] if k[0].startswith("triton")) for found in alone}) == 3, (
        "each tolerance has a precision of its own"
    )
    assert together([lambda one=one: lowered(*one, LowerPool(1)) for one in given]) == alone  # type: ignore[misc]


def test_a_backend_keeps_nothing_of_a_call() -> None:
    before = dict(vars(TRITON))
    lowered(0, 1e-2, LowerPool(0))
    assert vars(TRITON) == before
    with pytest.raises(AttributeError):
        TRITON.vectors = 1  # type: ignore[misc]


def test_one_program_in_several_threads(tmp_path: Path) -> None:
    """Calls wait for each other; states are read and set between them."""
    program = optimized(1, tmp_path)
    shape = program.manifest.inputs[0][1]
    inputs = [np.random.default_rng(k).standard_normal(shape).astype(np.float32) for k in range(8)]
    expected = [program(x) for x in inputs]

    def calls(k: int) -> bool:
        return all(np.array_equal(program(inputs[k]), expected[k]) for _ in range(100))

    assert all(together([lambda k=k: calls(k) for k in range(8)]))  # type: ignore[misc]


def test_a_state_is_set_as_a_whole(tmp_path: Path) -> None:
    state = t.state("s", (1 << 16,))
    source = Graph.of(state + t.input("x", (1 << 16,)), updates={"s": state * 1.0})
    program = tg.optimize(source, budget=10.0, deterministic=True, limits=LIMITS, costdb=tmp_path).bind()
    zero, stop = np.zeros(1 << 16, np.float32), threading.Event()

    def sets() -> bool:
        for k in range(300):
            program.set_state("s", np.full(1 << 16, k, np.float32))
        stop.set()
        return True

    def reads() -> bool:
        while not stop.is_set():
            if len(np.unique(program(zero))) != 1 or len(np.unique(program.get_state("s"))) != 1:
                return False
        return True

    assert all(together([sets, reads, reads]))


def test_optimize_from_an_executor_of_asyncio(tmp_path: Path) -> None:
    async def both() -> list[tg.Program]:
        return await asyncio.gather(*(asyncio.to_thread(optimized, k, tmp_path) for k in (1, 2)))

    assert [p.report.verification["passed"] for p in asyncio.run(both())] == [True, True]


def test_torch_s_defaults_of_the_caller_change_nothing(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    plain = optimized(3, tmp_path)
    x = np.ones(plain.manifest.inputs[0][1], np.float32)
    expected = plain(x)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            other = optimized(3, tmp_path)
            assert np.array_equal(other(x), expected)
    finally:
        torch.set_default_dtype(before)
    assert other.source == plain.source


def test_what_belongs_to_the_process_is_as_it_was_after_threads_that_overlap() -> None:
    """Two that end in the order in which they began: each must not bring back what the other one had set."""
    entered, left = threading.Event(), threading.Event()
    recursion, filters, heard = sys.getrecursionlimit(), list(warnings.filters), list[str]()

    def first() -> None:
        with gc_paused(), one_blas_thread(), warnings_into(heard):
            assert entered.wait(60)
            warned("of the first")
        left.set()

    def second() -> None:
        own: list[str] = []
        with gc_paused(), one_blas_thread(), warnings_into(own):
            entered.set()
            assert left.wait(60)
            assert not gc.isenabled(), "the other one's end does not bring the collector back"
            warned("of the second")
        assert own == ["of the second"]

    from tensor_graphs.backends.runtime.threads import _openblas

    blas = _openblas()
    threads = blas and blas[1]()
    together([first, second])
    assert gc.isenabled() and heard == ["of the first"]
    assert warnings.filters == filters and sys.getrecursionlimit() == recursion
    assert (blas and blas[1]()) == threads


def test_programs_that_launch_in_threads_leave_torch_s_rule_for_float32_alone() -> None:
    torch = pytest.importorskip("torch")
    space: dict[str, Any] = {"torch": torch, "Lock": threading.Lock}
    exec("from __future__ import annotations\n" + HELPERS["Calls"], space)
    rule = torch.backends.cuda.matmul
    name, loose = ("fp32_precision", "tf32") if hasattr(rule, "fp32_precision") else ("allow_tf32", True)
    before, seen = getattr(rule, name), list[Any]()

    def launch() -> tuple[()]:
        time.sleep(0.001)
        seen.append(getattr(rule, name))
        return ()

    setattr(rule, name, loose)
    try:
        programs = [space["Calls"](launch, None, [], [], "cpu", graph=False, reuse=True) for _ in range(4)]
        together([lambda p=p: [p() for _ in range(10)] for p in programs])  # type: ignore[misc]
        assert getattr(rule, name) == loose and loose not in seen and len(seen) == 40
    finally:
        setattr(rule, name, before)


def test_the_settings_of_a_call_hold_in_its_threads() -> None:
    from tensor_graphs.pipeline.overlapped_tuning import OverlappedTuning

    seen: list[int] = []
    with settings.override(threads=3):
        early = OverlappedTuning([lambda: seen.append(settings.current().threads)], lambda *given: None)  # type: ignore[list-item, func-returns-value]
        early.matched()
        early.end()
    assert seen == [3]


def in_child_while_held(contexts: Sequence[AbstractContextManager[Any]], right: Callable[[], bool]) -> bool:
    """Result of `right()` in a forked child, while another thread of the parent is inside contexts; False if the child
    hangs."""
    held, done = threading.Event(), threading.Event()

    def holds() -> None:
        with ExitStack() as stack:
            for context in contexts:
                stack.enter_context(context)
            held.set()
            done.wait(600)

    thread = threading.Thread(target=holds)
    thread.start()
    assert held.wait(60)
    child = os.fork()
    if child == 0:
        signal.alarm(300)  # a child that hangs is killed
        os._exit(0 if right() else 1)
    status = os.waitpid(child, 0)[1]
    done.set()
    thread.join()
    return os.waitstatus_to_exitcode(status) == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_runs_programs_and_optimizes(tmp_path: Path) -> None:
    """With processes and threads of its own, also where the parent's threads hold what it needs."""
    big = tg.optimize(
        t.exp(t.input("x", (256, 256))) @ t.param("w", (256, 256)), params={"w": np.ones((256, 256), np.float32)},
        budget=10.0, deterministic=True, limits=LIMITS, costdb=tmp_path,
    )  # fmt: skip
    x = np.zeros((256, 256), np.float32)
    expected = big(x)

    def right() -> bool:
        same = np.array_equal(big(x), expected) and gc.isenabled()
        return same and bool(optimized(2, tmp_path).report.verification["passed"])

    assert in_child_while_held([big._lock, gc_paused()], right)
    assert optimized(2, tmp_path).report.verification["passed"], "the parent's workers are its own"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_locks_are_free_in_a_forked_child(tmp_path: Path) -> None:
    """Those of a store and of traces, whichever thread of the parent holds them."""
    graph = CompiledGraph(torch.fx.symbolic_trace(torch.nn.ReLU()), CompileOptions())
    locks = [Store(tmp_path)._lock, aten_recurrent._LOCK, CompilePool(1, 90)._lock, graph._lock]
    free = lambda: all(lock.acquire(timeout=20) for lock in [*locks, cache_folder._making])
    assert in_child_while_held([*locks, cache_folder._making], free)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_has_a_temporary_folder_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of the parent goes with the parent."""
    monkeypatch.setattr(cache_folder, "_temporary", [])
    folder = cache_folder._temporary_folder()
    monkeypatch.setenv("TENSOR_GRAPHS_HOME", str(folder))

    def right() -> bool:
        shutil.rmtree(folder)  # as at the end of the parent
        own = cache_folder._temporary_folder()
        is_new = own != folder and own.is_dir() and "TENSOR_GRAPHS_HOME" not in os.environ
        shutil.rmtree(own)
        return is_new

    assert in_child_while_held([], right)


def test_programs_are_saved_not_pickled(tmp_path: Path) -> None:
    program = optimized(4, tmp_path)
    x = np.ones(program.manifest.inputs[0][1], np.float32)
    for way in (pickle.dumps, copy.deepcopy):
        with pytest.raises(UsageError, match=r"program\.save"):
            way(program)
    assert np.array_equal(copy.copy(program)(x), program(x))


@pytest.mark.usefixtures("new_garbage_only")
def test_the_lines_of_a_program_s_text_go_with_it(tmp_path: Path) -> None:
    earlier = set(linecache.cache)
    program = optimized(104, tmp_path)
    program(np.ones(program.manifest.inputs[0][1], np.float32))
    (file,) = {
        f
        for f in linecache.cache.keys() - earlier
        if f.startswith("<") and linecache.getlines(f)[:3] == program.source.splitlines(True)[:3]
    }
    del program
    gc.collect()
    assert file not in linecache.cache


KEPT = """
from tests.fuzz.soak import resources, slope, soak
soak(12, 2, measured=0, samples=1, say=False)  # loads the libraries of all backends
most = resources().children + 2  # two workers
found = soak(12, 2, measured=0, samples=3, say=False)
files = 3  # descriptors that a saturation worker takes: two pipes, and the file of its messages
beside = {(r.files - files * r.children, r.threads - r.children) for _, r in found[1:]}  # (a worker may have been ended)
assert len(beside) == 1 and all(r.children <= most for _, r in found), found
assert slope(found) < 400, found  # KB
"""


def test_optimizations_keep_nothing() -> None:
    """The short form of `python -m tests.fuzz.soak`, in a process without the threads and objects of other tests."""
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", KEPT], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_modules_that_another_thread_was_importing_are_missing_in_a_forked_child(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their import would wait for the thread, which the child does not have; other modules are left alone."""
    for name in ("slow_one", "slow_too"):
        (tmp_path / f"{name}.py").write_text("import time\nwhile not released: time.sleep(0.01)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(builtins, "released", False, raising=False)
    monkeypatch.setattr(imported_module, "SLOW", ("slow_one",))
    threads = [threading.Thread(target=importlib.import_module, args=[name]) for name in ("slow_one", "slow_too")]
    for thread in threads:
        thread.start()
    wait_for(lambda: {"slow_one", "slow_too"} <= sys.modules.keys())
    if not (child := os.fork()):
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(300)  # a child that hangs is killed
        try:
            importlib.import_module("slow_one")
        except ImportError:
            os._exit(3 if sys.modules["slow_too"] is not None and sys.modules["numpy"] is np else 4)
        finally:
            os._exit(5)
    monkeypatch.setattr(builtins, "released", True)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    for thread in threads:
        thread.join()
    del sys.modules["slow_one"], sys.modules["slow_too"]


def test_modules_that_another_thread_imports_are_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the end of its import `sys.modules` has a module without most of its contents, such as `torch.autocast`."""
    (tmp_path / "slowly_imported.py").write_text(
        "import time\nbegan = True\nfor _ in range(30_000):\n    time.sleep(0.01)\n    if released: break\nwhole = True\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(builtins, "released", False, raising=False)
    assert imported("slowly_imported") is None
    thread = threading.Thread(target=lambda: importlib.import_module("slowly_imported"))
    thread.start()
    wait_for(lambda: "slowly_imported" in sys.modules)
    assert not hasattr(sys.modules["slowly_imported"], "whole")
    threading.Timer(0.05, lambda: monkeypatch.setattr(builtins, "released", True)).start()
    assert imported("slowly_imported").whole
    thread.join()
    sys.modules.pop("slowly_imported")
