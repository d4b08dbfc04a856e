"""Code shared by the figures: settings of the run, rows of the table, timing in turn, models on disk."""

from __future__ import annotations

import json
import os
import random
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, Self

ROOT = Path(__file__).parents[1]
DATA = Path(os.environ.get("BENCH_DATA", ROOT.parent / "shared/data"))
WORK = Path(os.environ.get("BENCH_WORK", ROOT / "out/bench"))
QUICK = os.environ.get("BENCH_QUICK") == "1"  # small models and few rounds: does it run at all?
BUDGET = float(os.environ.get("BENCH_BUDGET", "60"))  # seconds of one `optimize`
THREADS = 2

Row = dict[str, Any]


class Sampler:
    """Thread that calls `sample` every `seconds`, as long as the context lasts."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._ended = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self.thread.start()
        return self

    def __exit__(self, *args: object) -> None:
        self._ended.set()
        self.thread.join()

    def _run(self) -> None:
        while not self._ended.wait(self.seconds):
            self.sample()

    def sample(self) -> None:
        """Take one sample; subclasses implement it."""
        raise NotImplementedError


def cpu_seconds() -> tuple[float, float]:
    """CPU seconds of this process, and of its living and ended child processes."""
    own, ended = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    ticks, found, below = os.sysconf("SC_CLK_TCK"), dict[int, tuple[int, float]](), {os.getpid()}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            found[int(entry.name)] = int(fields[1]), sum(map(int, fields[11:15])) / ticks
    living = 0.0
    while fresh := {pid for pid, (parent, _) in found.items() if parent in below} - below:
        living += sum(found[pid][1] for pid in fresh)
        below |= fresh
    return own.ru_utime + own.ru_stime, ended.ru_utime + ended.ru_stime + living


def with_bytecode(**more: str) -> dict[str, str]:
    """Environment of a child process in which imported modules are compiled once, as those of an installed package are:
    into a folder of the benchmarks, whatever this process' own setting. `more`: further variables."""
    known = {**os.environ, "PYTHONPYCACHEPREFIX": str(WORK / "bytecode"), **more}
    known.pop("PYTHONDONTWRITEBYTECODE", None)
    return known


def row(figure: str, required: str, measured: str, ok: bool | None = None, **details: Any) -> Row:
    """One row of the table of figures.

    `ok`: whether the requirement is met; None if there is none. `details` are kept in the JSON only.
    """
    return {"figure": figure, "required": required, "measured": measured, "ok": ok, **details}


def data(*parts: str) -> Path:
    """Path of a file of the shared data folder. Raises FileNotFoundError, which says how to name that folder."""
    path = DATA.joinpath(*parts)
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing: set BENCH_DATA to the folder of the shared data")
    return path


def gemma(layers: int, *, vocab: int = 262_144, dtype: str = "bfloat16") -> Path:
    """A folder with a Gemma-3-270M-like model of random weights, written once."""
    from tensor_graphs.models import random_checkpoints

    folder = WORK / f"models/gemma3-{layers}-{vocab}-{dtype}"
    if not (folder / "config.json").exists():
        random_checkpoints.write_gemma3(folder, layers=layers, vocab=vocab, dtype=dtype)
    return folder


@contextmanager
def timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    """Add the wall-clock seconds of a block to `seconds[name]`."""
    start = time.perf_counter()
    yield
    seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - start


def mad(samples: list[float]) -> float:
    """Median absolute deviation of samples from their median."""
    middle = median(samples)
    return median(abs(s - middle) for s in samples)


def rounds(
    calls: Mapping[str, Callable[[], Any]], *, seconds: float = 4.0, least: int = 7, most: int = 200
) -> dict[str, list[float]]:
    """Samples in ms of each call, in rounds of one call each, so that drift of the machine affects all alike.

    Each round has another order. It ends after `seconds`, but has at least `least` and at most `most` rounds.
    """
    if QUICK:
        seconds, least = 0.3, 3
    for call in calls.values():
        for _ in range(2):
            call()
    samples: dict[str, list[float]] = {n: [] for n in calls}
    order, drawing = list(calls), random.Random(0)
    start = time.perf_counter()
    for turn in range(most):
        drawing.shuffle(order)
        for name in order:
            began = time.perf_counter_ns()
            calls[name]()
            samples[name].append((time.perf_counter_ns() - began) / 1e6)
        if turn + 1 >= least and time.perf_counter() - start > seconds:
            break
    return samples


def in_turn(
    calls: Mapping[str, Callable[[], Any]], *, seconds: float = 4.0, least: int = 7, most: int = 200
) -> dict[str, dict[str, float]]:
    """Median, MAD and fastest time in ms of each call, measured by `rounds`."""
    return {
        n: {"ms": median(s), "mad_ms": mad(s), "fastest_ms": min(s), "rounds": float(len(s))}
        for n, s in rounds(calls, seconds=seconds, least=least, most=most).items()
    }


def error(found: Any, exact: Any) -> float:
    """Relative Frobenius error of an array against the exact one."""
    from tensor_graphs.verification.comparison import relative_error

    return relative_error(found, exact)


def short(report: Any) -> dict[str, Any]:
    """Fields of an optimization's report for the JSON: size of the e-graph, bounds, plan and times."""
    return {
        "seconds": {k: round(v, 3) for k, v in report.seconds.items()},
        "e_nodes": report.e_nodes,
        "candidates": report.candidates,
        "unique_blocks": len(report.blocks),
        "instances": report.instances,
        "stopped": report.stopped,
        "kernels": [(k.name, k.count, round(k.us, 1), k.source) for k in report.kernels],
        "kernels_before": report.kernels_before,
        "kernels_after": report.kernels_after,
        "cost_us": report.cost_us,
        "lower_bound_us": report.lower_bound_us,
        "priced": report.priced,
        "measured_now": report.measured_now,
        "search_stopped": report.search_stopped,
        "verification": report.verification,
        "warnings": report.warnings,
    }


def in_process(title: str, expression: str, threads: int, limit_s: float) -> dict[str, Any]:
    """The value of an expression over the modules of benchmarks/cpu, as JSON, computed in a process of its own with so
    many threads. Raises RuntimeError with `title` if it fails or takes more than `limit_s` seconds."""
    module = expression.partition(".")[0]
    code = f"import json; from benchmarks.cpu import {module}; print(json.dumps({expression}))"
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "TENSOR_GRAPHS_THREADS")
    environment = {**os.environ, **dict.fromkeys(names, str(threads))}
    command = [sys.executable, "-c", code]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, env=environment)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"{title}: nothing within {limit_s} s") from None
    if done.returncode:
        raise RuntimeError(f"{title}: {done.stderr[-800:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def set_threads() -> None:
    """Limit every library to the two threads that the table states."""
    import torch

    torch.set_num_threads(THREADS)
