"""CPU seconds of the search of a language model's decode step for a GPU: `python -m benchmarks.decoding.search NAMES
[--layers N] [--again]`.

The search is that of an H200, without one: backends count as usable, nothing is measured, and kernels are priced from
rooflines. Each model (`benchmarks/decoding/llm.py`) runs in a process of its own. Printed for each stage are the CPU
seconds of the process and those of its worker processes; then, for optimistic, expected and pessimistic kernel times,
CPU seconds and cost of a solve that is followed by measuring and of one that is not (their limits count CPU time); the
kernels of the plan; and the sizes of e-graph and hypergraph. `--starter` predicts kernel times from the shipped rows;
`--quantize F` quantizes the weights. `--again` then builds the program from the plan cache in a second process. `--to
FILE` writes the figures as JSON.

`--on-gpu` runs the real thing on a GPU: two processes make the decode step with `--budget` seconds, the second from the
plan cache; printed are wall-clock seconds by stage, the timeline of all processes, CPU seconds of each thread over
time, the functions of each thread that take the most time (from samples of its stack), the kernels of the plan, and µs
of a step. Stages are printed when they begin. `--limit S` ends a process after S seconds and prints the samples taken
so far. `--processes N`: with N device processes. `--once` makes only the first; `--home FOLDER` keeps the cost store
there.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

from ..common import Sampler, cpu_seconds
from ..fingerprint import GPU, digest
from .llm import BATCH, CONFIGS, LENGTH, Repeated

NAMES = ("gemma-270m", "llama-1b")
BUDGET = 40.0  # of the plan that `--again` recalls
LONG_S = 2.5  # limit of a solve that no measuring follows, as in `search`
FUNCTIONS, SAMPLE_S = 45, 0.01  # lines of a profile; seconds between samples
THREADS_S = 0.5  # seconds between readings of the threads' CPU times


class Stages:
    """CPU seconds by stage, as (of this process, of its worker processes)."""

    def __init__(self) -> None:
        self.seconds: dict[str, tuple[float, float]] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Context manager that adds the CPU seconds of a block to the stage `name`."""
        before = cpu_seconds()
        yield
        own, workers = (b - a for a, b in zip(before, cpu_seconds()))
        self.seconds[name] = round(own, 2), round(workers, 2)
        print(f"  {name:12} {own:6.2f} {workers:6.2f}", flush=True)


def config_of(name: str, layers: int | None) -> dict[str, Any]:
    """The configuration of a model; `layers` replaces its number of layers."""
    config = dict(CONFIGS[name])
    if layers:
        config["num_hidden_layers"] = layers
        if "layer_types" in config:
            config["layer_types"] = config["layer_types"][:layers]
    return config


def decode_graph(config: dict[str, Any], quantize: str = "", rows: int = 1) -> Any:
    """Graph of a decode step of `rows` rows with lazy random weights. `quantize`: their form, if any."""
    from tensor_graphs.generation.cached_model import caches_of
    from tensor_graphs.generation.programs import step_graph
    from tensor_graphs.models.common.quantized_graph import quantized
    from tensor_graphs.models.huggingface.step import Folder
    from tensor_graphs.models.random_checkpoints import random_checkpoint

    weights: dict[str, Any] = {n: Repeated(w) for n, w in random_checkpoint(config).items()}  # type: ignore[arg-type]
    folder = Folder.of(config, weights)
    graph = step_graph(folder, caches_of(folder.config, rows, LENGTH, gpu=True), 1)
    return quantized(graph, quantize)[0] if quantize else graph


def gpu_assumed() -> Any:
    """Context manager in which the backends of a GPU count as usable."""
    from contextlib import ExitStack

    from tensor_graphs.backends.generate.generator import KernelGenerator
    from tensor_graphs.backends.library.torch_cuda import TorchCudaBackend

    stack = ExitStack()
    for backend in (TorchCudaBackend, KernelGenerator):
        stack.enter_context(mock.patch.object(backend, "unavailable", lambda self: ""))
    return stack


def solves(found: Any, prices: Any) -> dict[str, tuple[float, float, float]]:
    """(CPU seconds, cost in µs, lower bound in µs) of solves of a hypergraph at three sets of kernel times."""
    from tensor_graphs.extract.search.encoding import EncodedHypergraph
    from tensor_graphs.extract.search.plan_solver import pessimistic_us, quick_solve_seconds
    from tensor_graphs.extract.solve.solve import solve

    costs = {
        "optimistic": [p.low for p in prices],
        "expected": [p.us for p in prices],
        "pessimistic": [pessimistic_us(c, p) for c, p in zip(found.candidates, prices)],
    }
    rows = {}
    for kind, cost in costs.items():
        problem = EncodedHypergraph(found, cost).problem
        for label, limit, beam_only in (("quick", quick_solve_seconds(found, LONG_S), True), ("long", LONG_S, False)):
            with mock.patch("time.perf_counter", time.process_time):
                begun = time.process_time()
                one = solve(problem, time_limit=limit, beam_only=beam_only)
                took = time.process_time() - begun
            rows[f"{kind}, {label}"] = round(took, 2), round(one.cost, 2), round(one.lower_bound, 2)
            print(
                f"  {kind}, {label}: {took:.2f} s, {one.cost:.2f} µs, bound {one.lower_bound:.2f} ({one.method})",
                flush=True,
            )
    return rows


def kernel_rows(choice: Any) -> list[str]:
    """The kernels of a plan: calls, µs of all calls, µs of a call with the ends of its interval, name, types."""
    rows: dict[str, list[Any]] = {}
    for c, p in ((choice.hypergraph.candidates[i], choice.prices[i]) for i in choice.chosen):
        if not c.is_view:
            types = " ".join(str(o.type) for o in c.call.operands.values())
            row = rows.setdefault(f"{c.template.name} {c.call.output.type} <- {types}", [0, 0.0, p])
            row[0], row[1] = row[0] + 1, row[1] + p.us
    ordered = sorted(rows.items(), key=lambda item: -item[1][1])
    return [
        f"{n:4d} {us:8.1f} {p.us:7.1f} {p.low:7.1f} {p.high:7.1f} {p.origin} {name}" for name, (n, us, p) in ordered
    ]


def searched(name: str, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Figures of a search in this process, stage by stage; its plan is stored in the plan cache."""
    from tensor_graphs.backends.program.launch.emission import emit_for
    from tensor_graphs.backends.registry import select
    from tensor_graphs.costdb.store.store import Store
    from tensor_graphs.extract.search.plan import plan_of
    from tensor_graphs.options import Options
    from tensor_graphs.pipeline.context.session import Session
    from tensor_graphs.pipeline.costs.prices import CostPricer
    from tensor_graphs.pipeline.recall import look_up
    from tensor_graphs.pipeline.stages.choose import choose
    from tensor_graphs.pipeline.stages.make_report import make_report
    from tensor_graphs.pipeline.stages.match import hypergraph
    from tensor_graphs.pipeline.stages.prepare import Task, prepare
    from tensor_graphs.pipeline.stages.rewrite import as_written, rewrite

    stage = Stages()
    session = Session(Options(backend="gpu", budget=math.inf, costdb=folder))
    backends, store = (
        select("gpu"),
        Store(folder, starter=(lambda: [GPU.partition("|")[0]]) if options.starter else None),
    )
    with stage("load"):
        graph = decode_graph(config_of(name, options.layers), options.quantize, BATCH.get(name, 1))
    with stage("simplify"):
        task = Task(graph, prepare(session, graph, None), backends)
    session.lowerings.pool.begin()
    with stage("rewrite"):
        rewritten = rewrite(session, task.work)
    with stage("match"):
        found = hypergraph(session, rewritten.view, backends)
    with stage("extract"):
        choice = choose(session, found, CostPricer(store), None)
    with stage("plan"):
        plan = plan_of(choice, task.work)
    with stage("emit"):
        text = emit_for(plan).source
    with stage("store plan"):
        report = make_report(session.options, task, rewritten, choice, store)
        report.search_stopped, report.omitted = "measured", []
        entry = look_up(Session(Options(backend="gpu", budget=BUDGET, costdb=folder)), graph, None, backends).entry
        why = "" if entry is None else entry.write(plan, report, text, BUDGET, "", folder)
    with stage("unrewritten"):  # matched beside rewriting by overlapped tuning; here after it, in a state of its own
        other = Session(Options(backend="gpu", budget=math.inf, costdb=folder))
        other.lowerings.pool.begin()
        hypergraph(other, as_written(rewritten.blocks), backends)
    print("\n".join(kernel_rows(choice)), flush=True)
    return {
        "stages": stage.seconds, "e_nodes": len(rewritten.view), "candidates": len(found.candidates),
        "cost_us": round(choice.cost, 3), "bound_us": round(choice.extraction.lower_bound, 3),
        "solves": solves(found, choice.prices), "method": choice.extraction.method, "kernels": len(choice.chosen), "program": digest(text), "not_stored": why,
    }  # fmt: skip


def recalled(name: str, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Figures of building the program of a stored plan in this process, stage by stage."""
    stage = Stages()
    with stage("import"):
        from tensor_graphs.backends.registry import select
        from tensor_graphs.options import Options
        from tensor_graphs.pipeline.context.session import Session
        from tensor_graphs.pipeline.recall import _rebuilt, look_up
        from tensor_graphs.pipeline.search import attach_provenance
        from tensor_graphs.pipeline.stages.prepare import Task, prepare
    session, backends = Session(Options(backend="gpu", budget=BUDGET, costdb=folder)), select("gpu")
    with stage("load"):
        graph = decode_graph(config_of(name, options.layers), options.quantize, BATCH.get(name, 1))
    with stage("look up"):
        slot = look_up(session, graph, None, backends)
    assert slot.entry is not None and slot.data is not None, session.plan_cache_notes
    with stage("simplify"):
        task = Task(graph, prepare(session, graph, None, begin=False), backends)
    with stage("rebuild"):
        _, program, task = _rebuilt(session, task, slot.entry, slot.data)
    with stage("provenance"):
        attach_provenance(program, task, as_written=False)
    own, workers = cpu_seconds()
    return {"stages": stage.seconds, "process_s": round(own + workers, 2), "program": digest(program.source)}


class ThreadTimes:
    """CPU seconds of the threads of this process, and seconds in which they waited for a core, by name of the thread.

    What is left of a thread's time it waits for processes, or for the interpreter lock.
    """

    def __init__(self) -> None:
        self.began = self.taken = time.monotonic()
        self.last: dict[int, tuple[int, int]] = {}  # native id -> (CPU, waiting) in ns
        self.rows: dict[str, list[tuple[float, float]]] = {}  # name -> (CPU, waiting) seconds of each interval

    def take(self) -> None:
        """Add an interval of at least `THREADS_S`, if as much time has passed since the last one."""
        if time.monotonic() < self.taken + THREADS_S:
            return
        self.taken, intervals = time.monotonic(), 1 + max(map(len, self.rows.values()), default=0)
        for t in threading.enumerate():
            try:
                cpu, waiting, _ = map(int, Path(f"/proc/self/task/{t.native_id}/schedstat").read_text().split())
            except (OSError, ValueError):
                continue
            before = self.last.get(t.native_id or 0, (0, 0))
            self.last[t.native_id or 0] = cpu, waiting
            row = self.rows.setdefault(t.name, [])
            row += [(0.0, 0.0)] * (intervals - len(row))
            row[-1] = row[-1][0] + (cpu - before[0]) / 1e9, row[-1][1] + (waiting - before[1]) / 1e9

    def __str__(self) -> str:
        """For each busy thread its seconds, and a digit per interval: tenths of it in which the thread had a core."""
        lines = [f"{'CPU s':>7} {'queued':>7}  tenths on a core in intervals of {THREADS_S} s"]
        for name, row in sorted(self.rows.items(), key=lambda item: -sum(c for c, _ in item[1]))[:8]:
            cpu, waiting = sum(c for c, _ in row[1:]), sum(w for _, w in row[1:])
            tenths = "".join(str(min(9, round(10 * c / THREADS_S))) for c, _ in row[1:])
            lines.append(f"{cpu:7.2f} {waiting:7.2f}  {tenths} {name}")
        return "\n".join(lines)


class StackSampler(Sampler):
    """Sampler of the stacks of all threads of this process."""

    def __init__(self) -> None:
        super().__init__(SAMPLE_S)
        self.found: dict[str, Counter[str]] = {}
        self.times = ThreadTimes()

    def sample(self) -> None:
        """Count the functions on each thread's stack."""
        self.times.take()
        names = {t.ident: t.name for t in threading.enumerate() if t is not self.thread}
        for number, frame in sys._current_frames().items():
            if number in names:
                stack, at = set(), frame
                while at is not None:
                    code = at.f_code
                    stack.add(f"{code.co_qualname} ({Path(code.co_filename).name}:{code.co_firstlineno})")
                    at = at.f_back  # type: ignore[assignment]
                self.found.setdefault(names[number], Counter()).update(stack)

    def __str__(self) -> str:
        """For each thread with many samples, the functions that are most often on its stack."""
        lines = [str(self.times)]
        for name, counts in sorted(self.found.items(), key=lambda item: -max(item[1].values()))[:4]:
            lines += [f"{name}:", *(f"{n * SAMPLE_S:7.2f} s {what}" for what, n in counts.most_common(FUNCTIONS))]
        return "\n".join(lines)


@contextmanager
def limited(seconds: float | None, sampler: StackSampler) -> Iterator[None]:
    """Context that prints the samples and ends the process after `seconds`; None for no limit."""

    def end() -> None:
        print(f"not done after {seconds} s", sampler, sep="\n", flush=True)
        os._exit(1)

    timer = threading.Timer(seconds or 0.0, end)
    timer.daemon = True
    if seconds is not None:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def on_gpu(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Wall-clock seconds of making a decode step in this process, as a whole and by stage."""
    from tensor_graphs.generation.bandwidth import memory_bandwidth
    from tensor_graphs.report.timeline import drawn

    from .llm import generator, program_row, stages_shown
    from .queued_time import timed

    begun = time.perf_counter()
    CONFIGS[name] = config_of(name, options.layers)
    made = generator(name, options.budget, options.quantize, progress=stages_shown())
    loaded = time.perf_counter()
    with StackSampler() as sampler, limited(options.limit, sampler):
        program = made._programs.decode()
    ready = time.perf_counter()
    program.flat_near()
    program.wait("a decode step")
    first = time.perf_counter()
    made._programs.set("length", [LENGTH // 2] * BATCH.get(name, 1), "int64")
    us = timed(program.flat_near, lambda: program.wait("a decode step"))
    report = program.report
    assert report is not None
    row = program_row(program, memory_bandwidth(program.tensors))
    print(drawn(report.timeline), sampler, sep="\n", flush=True)
    for kernel in row.pop("table"):
        terms = "".join(f"\n{calls:8d} {each:8.2f} {term}" for term, (calls, each) in kernel["terms"].items())
        print(
            f"{kernel['calls']:5d} {kernel['us']:8.1f} {kernel['limit_us']:8.1f} {kernel['kernel']} {kernel['result']}{terms}"
        )
    return {
        "from_plan_cache": report.from_plan_cache, "weights_s": loaded - begun, "ready_s": ready - loaded, "first_step_s": first - ready,
        "step_us": us, "measured": report.measured_now, "cache": report.plan_cache_notes, **row,
    }  # fmt: skip


def part(action: str, name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Figures of one part (`action`), measured in this process."""
    if action == "on-gpu":
        from tensor_graphs.backends.tuning import measure_gpu

        with mock.patch.object(measure_gpu, "PROCESSES", options.processes or measure_gpu.PROCESSES):
            return on_gpu(name, options)
    os.environ["TENSOR_GRAPHS_GPU"] = GPU
    with gpu_assumed():
        return {"search": searched, "again": recalled}[action](name, options, Path(options.store))


def printed(command: list[str], env: dict[str, str]) -> str:
    """Run a command and print its lines as they come; the last line. Raises CalledProcessError if it fails."""
    last = ""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            last = line.strip() or last
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return last


def main() -> None:
    """Parse the command line; run each part in a process of its own, with an empty home."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("names", nargs="*", default=list(NAMES))
    parser.add_argument("--layers", type=int, help="number of layers, if not the model's")
    parser.add_argument("--again", action="store_true", help="also recall the plan in a second process")
    parser.add_argument(
        "--on-gpu", action="store_true", help="two real searches on a GPU, the second from the plan cache"
    )
    parser.add_argument("--once", action="store_true", help="on a GPU, only the first of the two searches")
    parser.add_argument("--home", type=Path, help="folder for the cost store, otherwise a temporary one")
    parser.add_argument("--quantize", default="", help="form of quantized weights")
    parser.add_argument("--starter", action="store_true", help="predict from the shipped starter rows of an H200")
    parser.add_argument("--budget", type=float, default=BUDGET, help="seconds of a search on a GPU")
    parser.add_argument("--processes", type=int, help="device processes of a search on a GPU, if not the usual number")
    parser.add_argument("--limit", type=float, help="seconds after which a search on a GPU is ended")
    parser.add_argument("--to", type=Path, help="write the figures as JSON")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        print(json.dumps(part(options.part, options.names[0], options)))
        return
    found: dict[str, Any] = {}
    parts: tuple[str, ...] = (
        ("on-gpu", "on-gpu")[options.once :]
        if options.on_gpu
        else ("search", "again")
        if options.again
        else ("search",)
    )
    for name in options.names:
        with tempfile.TemporaryDirectory() if options.home is None else nullcontext(str(options.home)) as home:
            for n, action in enumerate(parts):
                print(f"{name}: {action}", flush=True)
                command = [sys.executable, "-m", "benchmarks.decoding.search", name, "--part", action, "--store", home]
                command += ["--budget", str(options.budget), "--quantize", options.quantize]
                command += ["--layers", str(options.layers)] if options.layers else []
                command += ["--processes", str(options.processes)] if options.processes else []
                command += ["--starter"] if options.starter else []
                env = {**os.environ, "TENSOR_GRAPHS_HOME": home}
                command += ["--limit", str(options.limit)] if options.limit is not None else []
                found[f"{name} {action} {n}"] = json.loads(printed(command, env))
    if options.to:
        options.to.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
