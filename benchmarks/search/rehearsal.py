"""What a search does with its seconds, without a GPU: `python -m benchmarks.search.rehearsal WORKLOAD [--seconds 26]
[--backend gpu] [--device 1] [--slow 1] [--times STORE ...]`.

The search, its plans and the order of its measurements are real; compilers and the device are replaced by waits of the
durations that were observed on an H200 with 32 cores. The time of a kernel is that of the given cost stores, on any
GPU, else it is made up from its roofline and its name. Printed is what each round requested and when, then the plan,
and how many schedules of which kernels were measured. `--device 3`: the device takes three times as long for
everything, as when others use it; `--slow 2`: all waits take twice as long, so that on a busy machine the host's work
has no larger share than elsewhere.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import random
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any
from unittest import mock

from benchmarks.models.workloads import WORKLOADS
from tensor_graphs.backends.generate.generator import KernelGenerator
from tensor_graphs.backends.library.torch_cuda import TorchCudaBackend
from tensor_graphs.backends.registry import select
from tensor_graphs.backends.tuning.gpu_process import GpuProcess
from tensor_graphs.backends.tuning.keys import key_of
from tensor_graphs.backends.tuning.measure_gpu import GpuMeasurer
from tensor_graphs.backends.tuning.trials import Measured, Trial
from tensor_graphs.costdb.keys.key import Work
from tensor_graphs.costdb.store.store import Store
from tensor_graphs.extract.candidates.hypergraph import Hypergraph
from tensor_graphs.extract.model.clock import Clock
from tensor_graphs.extract.model.kernel import Call, Template
from tensor_graphs.extract.model.work import call_work
from tensor_graphs.extract.search.search import search
from tensor_graphs.options import Options
from tensor_graphs.pipeline.context.session import Session
from tensor_graphs.pipeline.costs.prices import CostPricer
from tensor_graphs.pipeline.sources.source import as_graph
from tensor_graphs.pipeline.stages.match import hypergraph
from tensor_graphs.pipeline.stages.prepare import prepare
from tensor_graphs.pipeline.stages.rewrite import rewrite

GPU = "gpu:NVIDIA H200:sm90:multiprocessors=132|none|none"
WORKERS = 15  # compilers
COMPILE_S = {"triton": 0.3, "nvrtc": 0.15}  # seconds of one schedule
OPEN_S, LOAD_S, TRY_S, FULL_S = (
    0.006,
    0.015,
    0.012,
    0.045,
)  # a kernel, a schedule beside others, alone on the device, and in full
LEAST, MOST_S = 11, 0.004  # times that a try runs a kernel at least, and seconds in which it runs it more often
GENERATED, LIBRARY, SPREAD = (
    (1.05, 1.5),
    (1.1, 2.5),
    0.8,
)  # made up: times the bound, at best; what other schedules take more
LAUNCH_US = 1.5
Known = dict[tuple[str, ...], float]


class Compilers:
    """Stand-in for the compile workers: waits as long as compilers take."""

    workers, starting = WORKERS, False

    def __init__(self, slow: float) -> None:
        self.slow, self.busy, self.clock = slow, 0, Clock()
        self._threads, self._numbers, self._lock = ThreadPoolExecutor(WORKERS), itertools.count(), Lock()

    def start(self) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Shut down the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def submit(self, text: Any, call: Call) -> Future[dict[str, Any]]:
        """Future of a compiled kernel's resources: it fits, and its digest is unique."""
        with self._lock:
            self.busy += 1
        return self._threads.submit(self._compiled, COMPILE_S["triton" if "import triton" in text.text else "nvrtc"])

    def _compiled(self, seconds: float) -> dict[str, Any]:
        time.sleep(self.slow * seconds)
        with self._lock:
            self.busy -= 1
        return {"ok": True, "fits": True, "spills": 0, "digest": str(next(self._numbers)), "seconds": seconds}


class Silent:
    """Stand-in for a process with the device; it acknowledges every request."""

    alive, ended = True, None

    def start(self) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Does nothing."""

    def ask(self, job: dict[str, Any], timeout: float = 0.0) -> dict[str, Any]:
        """Acknowledgement of a request."""
        return {"ok": True}


class Times:
    """Kernel times in µs: those known to `stores`, else made up from rooflines of `store`."""

    def __init__(self, stores: Sequence[Path], store: Store) -> None:
        self.rooflines, self.known, self.made_up = store.predictor("cold").rooflines, Known(), 0
        for snapshot in (Store(folder).snapshot for folder in stores):
            for digest in snapshot.digests():
                row, found = snapshot.first_row(digest), snapshot.measurement(digest, "cold")
                if found is not None:
                    self.known[_place(row)] = found.us

    def of(self, template: Template, call: Call) -> float:
        """Time in µs of a kernel with the schedule of the call."""
        key = key_of(template, call)
        place = _place(key.columns)
        if place in self.known:
            return self.known[place]
        self.made_up += 1
        low, high = LIBRARY if template.space is None else GENERATED
        bound = self.rooflines.of(key.device, key.backend, str(key.dtypes[0])).us(Work(*call_work(template, call)))
        us = LAUNCH_US + bound * (low + (high - low) * random.Random("|".join(place[:3])).random())
        return us * (1 + SPREAD * random.Random(place[3]).random() ** 2) if call.schedule else us


def _place(columns: Any) -> tuple[str, ...]:
    """Key of a kernel with a schedule, independent of the device."""
    return tuple(str(columns[name]) for name in ("kernel", "shapes", "strides", "schedule"))


class Rehearsed(GpuMeasurer):
    """The GPU measurer with compilers and a device that only wait.

    `device`: factor on the device's usual durations. `slow`: factor on all durations.
    """

    def __init__(self, store: Store, times: Times, device: float, slow: float) -> None:
        super().__init__(store, device="cpu", workers=0, worker=Silent())  # type: ignore[arg-type]
        self.times, self.seconds, self.alone, self.open = times, device * slow, Lock(), set[int]()
        self.processes = [GpuProcess("cpu", 1.0, Silent()) for _ in range(2)]  # type: ignore[arg-type]
        self.pool = Compilers(slow)  # type: ignore[assignment]
        self.tried = Counter[str]()

    def _on_device(self, seconds: float, us: float) -> None:
        with self.alone:
            time.sleep(self.seconds * (seconds + LEAST * us / 1e6 + min(MOST_S, 100 * us / 1e6)))

    def _try(self, kernel: Measured, one: Trial) -> None:
        us, process = self.times.of(kernel.template, one.call), self._process_of(kernel)
        if kernel.number not in self.open:
            self.open.add(kernel.number)
            with process.clock.running("open"):
                self._on_device(OPEN_S, us)
        with process.clock.running("try"):
            time.sleep(self.seconds * LOAD_S)
            self._on_device(TRY_S, us)
        one.accuracy, one.cold = {"rel_fro": 0.0}, [us] * 3
        self.tried[f"{kernel.template.backend} {'looks' if kernel.look else 'searches'}"] += 1

    def _finish(self, kernel: Measured) -> None:
        for one in (kernel.trials[i] for i in kernel.best):
            with self._process_of(kernel).clock.running("time"):
                self._on_device(FULL_S, one.us)
            one.hot = one.cold


def hypergraph_of(workload: str, backend: str) -> Hypergraph:
    """The candidate kernels of a workload, or of a module of benchmarks/search/small_budgets.py."""
    if workload in WORKLOADS:
        given, weights = WORKLOADS[workload].arguments("cpu")
        module, inputs = WORKLOADS[workload].module(weights), tuple(given)
    else:
        from .small_budgets import made

        module, inputs, _ = made(workload, "cuda")
    there = lambda self: ""
    with (
        mock.patch.object(TorchCudaBackend, "unavailable", there),
        mock.patch.object(KernelGenerator, "unavailable", there),
    ):
        session = Session(Options(backend=backend, budget=math.inf))
        graph = as_graph(module, inputs)
        view = rewrite(session, prepare(session, graph, None).work).view
        return hypergraph(session, view, select(backend))


def main() -> None:
    """Parse the command line, run the search, print its rounds and plan."""
    parser = argparse.ArgumentParser(description="What a search does with its seconds, without a GPU.")
    parser.add_argument("workload")
    parser.add_argument("--seconds", type=float, default=26.0)
    parser.add_argument("--backend", default="gpu")
    parser.add_argument("--times", type=Path, nargs="*", default=[], help="cost stores of a GPU")
    parser.add_argument("--device", type=float, default=1.0, help="times as long that the device takes")
    parser.add_argument("--slow", type=float, default=1.0, help="times as long that a second lasts")
    options = parser.parse_args()
    os.environ.setdefault("TENSOR_GRAPHS_GPU", GPU)
    graph = hypergraph_of(options.workload, options.backend)
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder))
        times, began = Times(options.times, store), time.monotonic()
        say = lambda text: print(f"{(time.monotonic() - began) / options.slow:6.1f} s  {text}", flush=True)
        with Rehearsed(store, times, options.device, options.slow) as measurer:
            seconds = options.seconds * options.slow
            choice = search(graph, CostPricer(store), measurer, seconds=seconds, progress=say)
        say(f"{choice.cost:.2f} µs, {choice.rounds} rounds, {choice.stopped}")
    for i in choice.chosen:
        candidate, price = graph.candidates[i], choice.prices[i]
        if not candidate.is_view:
            print(f"{price.us:8.2f} µs {price.source} {candidate.template.name} {dict(price.schedule)}")
    print("schedules", dict(measurer.counts), f"of them {times.made_up} with times that were made up")
    print("seconds", {k: round(v / options.slow, 1) for k, v in measurer.spent.items() if k.endswith("_s")})


if __name__ == "__main__":
    main()
