"""Settings of a test run: a TENSOR_GRAPHS_HOME of its own, worker threads that sleep while they wait, a profile of
Hypothesis, and Triton's interpreter where there is no GPU.

No test reads or writes the user's cost store, or reads the shipped one. Libraries read the settings of their threads,
and Triton the choice of its interpreter, when they are imported.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import itertools
import os
import random
import resource
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

# Tests run on all cores at once: a thread that spins while it waits takes the core of another test.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")  # 2**4 cycles
# Dynamo collects garbage after each compilation: a tenth of its time in a process with the objects of all tests.
os.environ.setdefault("TORCH_DYNAMO_RUN_GC_AFTER_COMPILE", "0")

gc.disable()  # until the tests are collected: millions of objects are made meanwhile, and none is garbage

# Until the tests are collected, imports keep bytecode also where PYTHONDONTWRITEBYTECODE says otherwise: hundreds of
# processes that tests start would compile the package's sources anew, each for 1 to 2 s.
_writes_no_bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, False

with suppress(ImportError):  # the tests of tests/gpu/ run without it, too
    from hypothesis import HealthCheck
    from hypothesis import settings as hypothesis_settings

    # On a busy machine, drawing examples may take seconds, and so may one example. Each run has the same examples, so
    # that a change is what makes a test fail; --hypothesis-profile=random draws others each time, and more.
    for profile, same, count in (("suite", True, 50), ("random", False, 200)):
        hypothesis_settings.register_profile(
            profile, deadline=None, derandomize=same, max_examples=count, suppress_health_check=[HealthCheck.too_slow]
        )
    hypothesis_settings.load_profile("suite")


def same_examples() -> None:
    """Let Hypothesis draw none of the constants in the source of this package's modules, as it does now and then. Which
    it knows depends on the modules that earlier tests have imported, so that a test had other examples in another run;
    and to find them, each process of tests parses the whole package, for 6 s. The profile `random` does draw them."""
    with suppress(ImportError, AttributeError):
        from hypothesis.internal.conjecture import providers

        known = providers._local_constants
        providers._get_local_constants = lambda: known


def pytest_configure(config: pytest.Config) -> None:
    """Choose Triton's interpreter where there is no GPU, before test modules import Triton. The process that only
    distributes tests over others (pytest-xdist) does not look for a GPU: it need not import PyTorch.
    """
    if config.getoption("dist", "no") != "no" and not hasattr(config, "workerinput"):
        return
    from tensor_graphs.backends.library.torch_cuda import BACKEND

    if config.getoption("hypothesis_profile", None) != "random":
        same_examples()
    if BACKEND.unavailable():
        os.environ.setdefault("TRITON_INTERPRET", "1")


#: Files of tests for a GPU by the seconds that they take on one, the slowest first.
SLOWEST_ON_A_GPU = ("test_torch_compile", "test_sizes", "test_generate", "test_bad_input", "test_measure_command",
                    "test_decisions", "test_calls", "test_callers", "test_torch_cuda", "test_measure_gpu")  # fmt: skip


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With `-m gpu`, begin with the slowest files: processes that share the tests then end at about the same time, and
    a limit on the time of a machine that is lent cuts the tests that another call runs in seconds."""
    if config.getoption("markexpr") == "gpu":
        places = {name: n for n, name in enumerate(SLOWEST_ON_A_GPU)}
        items.sort(key=lambda item: places.get(item.path.stem, len(places)))


def pytest_collection_finish() -> None:
    """Enable garbage collection with high thresholds while tests run, because the process holds the objects of all
    test modules. Bytecode of modules that tests themselves write is not kept: a module that is changed within a second
    would be the old one.
    """
    sys.dont_write_bytecode = _writes_no_bytecode
    gc.set_threshold(50_000, 20, 20)
    gc.enable()


def pytest_sessionfinish() -> None:
    """Exclude all objects from the garbage collections with which pytest ends, until the interpreter exits: they would
    take seconds.
    """
    gc.freeze()
    atexit.register(gc.unfreeze)


MAX_GROWTH_KIB = 1 << 19  # growth of the process's peak memory after which its garbage is collected
_peak = 0  # KiB, at the last collection


@pytest.fixture(scope="module", autouse=True)
def no_old_garbage() -> Iterator[None]:
    """Clear the memo tables after each module, and collect garbage when memory has grown. Searches make all objects old
    (`gc_paused`), so that their garbage waits for a full collection, which these thresholds leave out: a process of
    tests grew to gigabytes."""
    global _peak
    yield
    from tensor_graphs.egraph.ir.memo import forget

    forget()
    if (peak := resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) > _peak + MAX_GROWTH_KIB:
        gc.collect()
        _peak = peak


@pytest.fixture
def new_garbage_only() -> Iterator[None]:
    """Exclude the objects that exist before a test from its garbage collections, which would take seconds."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@pytest.fixture(scope="session", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An empty TENSOR_GRAPHS_HOME for the session; child processes inherit it."""
    folder = str(tmp_path_factory.mktemp("home"))
    settings = {"TENSOR_GRAPHS_HOME": folder, "TENSOR_GRAPHS_STARTER": "none"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            patch.setenv(name, value)
        yield folder


@pytest.fixture(autouse=True)
def own_store(home: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests that name neither a home nor a cost store have a store each: rows that other tests have measured would
    choose other plans, and reading all of them takes longer than the rest of a small search."""
    from tensor_graphs.costdb.store import store
    from tensor_graphs.pipeline.context import session

    if not (shared := os.environ.get("TENSOR_GRAPHS_HOME")):  # a module whose fixture `home` is another
        return
    default, own = store.default_root, Path(shared, "stores", str(next(_stores)))
    for module in (store, session):
        monkeypatch.setattr(
            module, "default_root", lambda: own if (named := default()) == Path(shared, "costdb") else named
        )


_stores = itertools.count()


@pytest.fixture(scope="session")
def benchmark_module() -> Callable[[str], Any]:
    """Function that imports a module of benchmarks/ by its dotted name; it skips the test if the folder is missing, as
    in an installed package.
    """
    root = Path(__file__).parents[1]

    def load(name: str) -> Any:
        if not (root / "benchmarks").is_dir():
            pytest.skip("benchmarks/ is not part of the installed package")
        sys.path.insert(0, str(root))
        try:
            return importlib.import_module(f"benchmarks.{name}")
        finally:
            sys.path.remove(str(root))

    return load


@pytest.fixture
def even(monkeypatch: pytest.MonkeyPatch) -> None:
    """Timings without noise: all samples of a kernel equal its median, so that no measurement is repeated."""
    from tensor_graphs.backends.tuning.measure_cpu import CpuMeasurer
    from tensor_graphs.backends.tuning.measurement import Timing

    time = CpuMeasurer.time

    def timed(self: CpuMeasurer, *call: Any) -> Any:
        found = time(self, *call)
        return replace(found, samples_us=(found.median,) * 5) if isinstance(found, Timing) else found

    monkeypatch.setattr(CpuMeasurer, "time", timed)


CALL_US = 100.0  # of each call that `even_calls` times


@pytest.fixture(autouse=True)
def even_calls(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Whole calls of programs, of graphs as written and of callers' functions take the same time, so that the program
    runs: on a busy machine chance would decide, and timing takes a tenth of a second of each search. Times are real in
    tests that use `real_times`, and on a GPU."""
    from tensor_graphs.pipeline.execution import caller_timing, timing

    def once(call: Callable[[], Any]) -> float:
        call()
        return CALL_US

    def sampled(
        calls: Mapping[str, Callable[[], Any]], *, first: Callable[[], Any] = lambda: None, **how: Any
    ) -> dict[str, list[float]]:
        for call in calls.values():
            for run in (first, call, first, call):
                run()
        return {name: [CALL_US] * timing.FEW for name in calls}

    if "real_times" not in request.fixturenames and request.node.get_closest_marker("gpu") is None:
        monkeypatch.setattr(timing, "wall_us", once)
        for module in (timing, caller_timing):
            monkeypatch.setattr(module, "sampled", sampled)


@pytest.fixture
def real_times() -> None:
    """Whole calls are timed in this test (`even_calls`)."""


@pytest.fixture(scope="session", autouse=True)
def brief_measurements() -> Iterator[None]:
    """CPU kernels are timed for 3 ms instead of 15, in as many samples as a measurement has at least."""
    from tensor_graphs.backends.tuning.measure_cpu import CpuMeasurer

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(CpuMeasurer.__init__.__kwdefaults__, "seconds", 0.003)
        yield


@pytest.fixture(scope="session")
def quick_c(tmp_path_factory: pytest.TempPathFactory) -> str | None:
    """Command of the C compiler at -O1, which takes half of the time of -O3; None where CC names another compiler."""
    if "CC" in os.environ:
        return None
    script = tmp_path_factory.mktemp("compiler") / "cc"
    script.write_text('#!/bin/sh\nexec cc "$@" -O1 -fstrict-aliasing\n', encoding="utf-8")
    script.chmod(0o700)
    return shlex.quote(str(script))


@pytest.fixture(scope="session")
def quick_interpreter() -> Iterator[None]:
    """Triton's interpreter without work that is repeated for every operation, call or launch."""
    from .triton_interpreter import quickened

    with quickened():
        yield


@pytest.fixture(autouse=True)
def same_random_numbers() -> None:
    """The global random generators of Python, NumPy and PyTorch begin each test in one state, in any order of tests."""
    import numpy as np

    random.seed(0)
    np.random.seed(0)
    if (torch := sys.modules.get("torch")) is not None:
        torch.default_generator.manual_seed(0)


@pytest.fixture(autouse=True)
def same_threads() -> Iterator[None]:
    """PyTorch's number of threads in the main thread is the same after a test. Other threads have their own number, and
    Dynamo compiles a graph once more for each number: the tests that follow would see two graphs."""
    torch = sys.modules.get("torch")
    before = torch.get_num_threads() if torch is not None else 0
    yield
    assert torch is None or torch.get_num_threads() == before, (
        "the test changed the number of threads of the main thread"
    )


@pytest.fixture(scope="session", autouse=True)
def lasting_servers() -> Iterator[None]:
    """Servers that fork measuring processes are kept for the session: for the environments of all tests, and while
    other tests run."""
    from tensor_graphs.processes import forked

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forked, "MOST", 4)
        patch.setattr(forked, "IDLE_S", 600.0)
        patch.setattr(forked, "PER_REQUEST", (*forked.PER_REQUEST, "PYTEST_"))
        yield
        forked.close_servers()
        for server in forked._ended:
            server.process.wait(60)


@pytest.fixture(scope="session")
def forks() -> Iterator[Any]:
    """Starts worker processes as forks (forked_workers.py)."""
    from .forked_workers import Forks

    made = Forks()
    yield made
    made.close()


@pytest.fixture(autouse=True)
def forked_workers(forks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that measure are forks of one that has imported their modules; test modules about how such processes
    start and end replace this fixture."""
    from tensor_graphs.processes import spawn

    from .only_in import only_in

    only_in(monkeypatch, spawn, "subprocess", Popen=forks.popen)
