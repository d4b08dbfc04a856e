"""What a whole call of `optimize` for a GPU does with its budget, without a GPU: `python -m
benchmarks.search.call_rehearsal WORKLOAD [--budget 15] [--layers N] [--starting 4] [--slow 1] [--workers N] [--loading
2] [--times STORE ...]`.

Loading, rewriting, matching, solving and the order of measurements are real; compilers and the device are replaced by
waits (`rehearsal.py`), and the measuring processes are ready `--starting` seconds after the call. `--workers`:
processes that lower kernels, which are real (by default as many as this machine's cores allow). On a busy machine
`--slow` makes a second longer, also in the limits of all stages, and `--loading` says how many seconds the budget has
lost when the model is loaded, however long that took. The program is
neither run nor verified, so that first run, finalists, verification and timing take no time here. Printed are the
stages, the timeline and the plan's cost at made-up times. WORKLOAD: a name of `workloads.py` or `whole_models.py`.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.search.rehearsal import GPU, Rehearsed, Times
from benchmarks.search.timeline import made
from tensor_graphs.backends.generate.generator import KernelGenerator
from tensor_graphs.backends.generate.lowering_pool import LowerPool
from tensor_graphs.backends.library.torch_cuda import TorchCudaBackend
from tensor_graphs.backends.program.program import Program
from tensor_graphs.backends.tuning.gpu_process import GpuProcess
from tensor_graphs.costdb.store.store import Store
from tensor_graphs.extract.search import plan_solver, search
from tensor_graphs.options import Options
from tensor_graphs.pipeline import overlapped_tuning, short_search
from tensor_graphs.pipeline.context import reserves
from tensor_graphs.pipeline.context import session as session_module
from tensor_graphs.pipeline.context.session import Session
from tensor_graphs.pipeline.costs import measuring
from tensor_graphs.pipeline.optimize import optimize_graph
from tensor_graphs.pipeline.stages import match as matching
from tensor_graphs.pipeline.stages import rewrite as rewriting
from tensor_graphs.pipeline.stages.load import load
from tensor_graphs.progress import Progress
from tensor_graphs.report.timeline import drawn


class Starting:
    """Stand-in for a process with the device that starts slowly: its first reply comes at the time `ready`."""

    alive, ended = False, None

    def __init__(self, ready: float) -> None:
        self.ready = ready

    def start(self) -> None:
        """Starts at once; the first reply is what takes long."""
        self.alive = True

    def close(self) -> None:
        """Does nothing."""

    def ask(self, job: dict[str, Any], timeout: float = 0.0) -> dict[str, Any]:
        """Acknowledgement of a request, once the process has started."""
        time.sleep(max(0.0, self.ready - time.monotonic()))
        return {"ok": True}


def measurer(store: Store, folders: list[Path], options: argparse.Namespace) -> Rehearsed:
    """The rehearsed measurer, whose processes are ready `options.starting` seconds from now."""
    found = Rehearsed(store, Times(folders, store), 1.0, options.slow)
    found.processes = starting(options.slow * options.starting)
    return found


def starting(seconds: float) -> list[GpuProcess]:
    """Two processes with the device that are ready in so many seconds."""
    ready = time.monotonic() + seconds
    return [GpuProcess("cpu", 1.0, Starting(ready)) for _ in range(2)]  # type: ignore[arg-type]


def longer(slow: float) -> ExitStack:
    """Context manager in which the seconds that the stages have last `slow` times as long."""
    stack = ExitStack()
    for module in (
        reserves,
        session_module,
        measuring,
        matching,
        overlapped_tuning,
        short_search,
        rewriting,
        search,
        plan_solver,
    ):
        for name, value in vars(module).items():
            if name.endswith("_S") and isinstance(value, float):
                stack.enter_context(mock.patch.object(module, name, slow * value))
    return stack


def rehearsed(options: argparse.Namespace, home: Path) -> tuple[Session, Program, list[Rehearsed]]:
    """The call's session and program, and its measurer."""
    module, inputs, tolerance = made(options.workload)
    chosen = Options(
        backend="gpu", budget=options.slow * options.budget, verify=False, costdb=home, again=True, **({} if tolerance is None else {"tolerance": tolerance})
    )  # fmt: skip
    makers: list[Rehearsed] = []

    def maker(store: Store, **more: Any) -> Rehearsed:
        makers.append(measurer(store, options.times, options))
        return makers[-1]

    pool = partial(LowerPool, options.workers)
    there, began = lambda self: "", time.monotonic()
    say = lambda stage, text: print(f"{(time.monotonic() - began) / options.slow:6.1f} s  {stage}: {text}", flush=True)
    with (
        longer(options.slow),
        mock.patch.object(TorchCudaBackend, "unavailable", there),
        mock.patch.object(KernelGenerator, "unavailable", there),
        mock.patch.object(measuring, "is_planning_only", lambda name: False),
        mock.patch.object(measuring, "GpuMeasurer", maker),
        mock.patch.object(session_module, "LowerPool", pool),
    ):
        session = Session(chosen, Progress(say), whole=False, timed=False)
        with session.running(), measuring.measurer_started(session):
            loaded = load(session, module, inputs)
            if options.loading is not None:
                session.budget_start = session.now() - options.slow * options.loading
                for one in makers:
                    one.processes = starting(options.slow * (options.starting - options.loading))
            program = optimize_graph(session, loaded.graph, loaded.sizes)
    return session, program, makers


def main() -> None:
    """Parse the command line, run the call, print where its time went."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload")
    parser.add_argument("--budget", type=float, default=15.0)
    parser.add_argument("--starting", type=float, default=4.0, help="seconds until the measuring processes are ready")
    parser.add_argument("--times", type=Path, nargs="*", default=[], help="cost stores of a GPU")
    parser.add_argument("--workers", type=int)
    parser.add_argument("--loading", type=float)
    parser.add_argument("--slow", type=float, default=1.0, help="times as long that a second lasts")
    options = parser.parse_args()
    os.environ.setdefault("TENSOR_GRAPHS_GPU", GPU)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        _, program, makers = rehearsed(options, Path(folder))
    took, report = (time.monotonic() - began) / options.slow, program.report
    print(drawn(report.timeline))
    print("warnings", report.warnings)
    print("stages", {name: round(s / options.slow, 2) for name, s in report.seconds.items() if s >= 0.01})
    tried = sum((one.tried for one in makers), Counter[str]())
    print(f"{options.workload}: {took:.1f} s of {options.budget:g}; {report.cost_us:.0f} µs at made-up times, "
          f"{sum(k.count for k in report.kernels)} kernels, schedules {dict(tried)}, priced {report.priced}, omitted {report.omitted}")  # fmt: skip


if __name__ == "__main__":
    main()
