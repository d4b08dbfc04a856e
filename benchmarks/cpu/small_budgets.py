"""Plans of a CPU after 5 s with and without the shipped starter rows, and after 60 s: `python -m
benchmarks.cpu.small_budgets --to FOLDER`.

None of the modules is among those whose kernels were measured for the starter rows (cpu_training_models.py). Each
search is a process with an empty home: `cold` without starter rows, `starter` with the package's, `deterministic` with
them and nothing measured, `reference` with them and `--reference` seconds. On a busy machine (`--busy`) budgets are
multiplied by the slowdown, the wall-clock time of 0.3 s of CPU time over that; kernels and programs are timed by CPU
time (starter_rows.py). Each program is timed in processes of its own, `PASSES` times in turn with the others, and the
fastest pass counts: in one process, idle threads of a program would disturb the one after it. Printed are the ratios to
the fastest, and the seconds of each call.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..common import WORK, with_bytecode
from .starter_rows import SLEEPING, level

LABELS = ("cold", "starter", "deterministic", "reference")
JUDGED = (
    "mixer_block",
    "gated_mlp_4_tokens",
    "encoder_layer",
    "conv_block",
    "pointwise",
    "softmax",
)  # of benchmarks/search/small_budgets.py
OWN = ("gpt_640_t96", "bottleneck_384_14", "mlp_500_b40")
CALLS, SECONDS, PASSES = 400, 1.5, 3  # most calls and seconds of a process that times a program; such processes


def made(name: str) -> tuple[Any, tuple[Any, ...]]:
    """A module and example inputs."""
    import torch

    from ..models import cpu_training_models as blocks
    from ..search import small_budgets as small_budget

    torch.manual_seed(0)
    if name in JUDGED:
        module, inputs, _ = small_budget.made(name, "cpu")
        return module, inputs
    r = torch.randn
    makers: dict[str, Callable[[], Any]] = {
        "gpt_640_t96": lambda: (blocks.GPTBlock(640, 10), (r(1, 96, 640),)),
        "bottleneck_384_14": lambda: (blocks.Residual(384, 96), (r(1, 384, 14, 14),)),
        "mlp_500_b40": lambda: (torch.nn.Sequential(torch.nn.Linear(500, 1500), torch.nn.Tanh(), torch.nn.Linear(1500, 500)), (r(40, 500),)),
    }  # fmt: skip
    module, inputs = makers[name]()
    return module.eval(), inputs


def slowdown() -> float:
    """Slowdown by other processes: wall-clock seconds for 0.3 s of CPU time, divided by 0.3 s."""
    begin, own = time.perf_counter(), time.thread_time()
    while time.thread_time() - own < 0.3:
        pass
    return (time.perf_counter() - begin) / 0.3


def measure_busy() -> None:
    """Make this process' measuring workers time kernels by CPU time."""
    from tensor_graphs.backends.tuning import worker_process
    from tensor_graphs.backends.tuning.cpu_timing import BUSY

    ask = worker_process.CpuWorkerProcess.ask
    worker_process.CpuWorkerProcess.ask = lambda self, job, timeout=None: ask(self, {**job, "clock": BUSY}, timeout)  # type: ignore[method-assign]


def record_jobs(began: float) -> list[tuple[float, float, str, str, float]]:
    """A list that the measurements of this process are added to: seconds since `began`, seconds, backend and name of
    the kernel, its least sample in µs (0 without one)."""
    from tensor_graphs.backends.tuning import worker_process

    ask, jobs = worker_process.CpuWorkerProcess.ask, list[tuple[float, float, str, str, float]]()

    def recorded(self: Any, job: dict[str, Any], timeout: float | None = None) -> dict[str, Any]:
        start = time.monotonic()
        reply = ask(self, job, timeout)
        us = round(min(reply.get("samples", [0.0])), 2)
        jobs.append((round(start - began, 3), round(time.monotonic() - start, 3), job["backend"], job["template"], us))
        return reply

    worker_process.CpuWorkerProcess.ask = recorded  # type: ignore[method-assign]
    return jobs


def search(name: str, budget: float, to: Path, busy: bool, deterministic: bool = False) -> None:
    """Optimize a module in this process; save its program into `to` and its report beside it. With `deterministic`
    nothing is measured, and the budget does not end it."""
    import tensor_graphs as tg

    optimize = tg.optimize  # imports the pipeline
    factor = slowdown() if busy else 1.0
    if busy:
        measure_busy()
    module, inputs = made(name)
    began, used = time.monotonic(), time.process_time()
    jobs = record_jobs(began)
    chosen = {"budget": budget * factor, "allow_caller": False, "deterministic": deterministic}
    program = optimize(module, inputs, backend="auto", **chosen)
    took = {"slowdown": factor, "took_s": time.monotonic() - began, "cpu_s": time.process_time() - used, "jobs": jobs}
    program.save(to)
    to.with_suffix(".json").write_text(json.dumps({**took, **program.report.to_json()}, default=str))


def timed(name: str, folder: Path, busy: bool) -> float:
    """First decile of µs per call of a program."""
    import torch

    import tensor_graphs as tg
    from tensor_graphs.backends.tuning.cpu_timing import BUSY, WALL, WATCHES

    _, inputs = made(name)
    call, us = tg.load_program(folder), list[float]()
    watch, until = WATCHES[BUSY if busy else WALL], time.monotonic() + SECONDS * (slowdown() if busy else 1.0)
    with torch.no_grad():
        for turn in range(CALLS):
            elapsed = watch()
            call(*inputs)
            if turn > 4:
                us.append(elapsed() / 1000)
            if turn > 10 and time.monotonic() > until:
                break
    return level(us)


def fastest(name: str, folder: Path, target: Path, busy: list[str]) -> float:
    """µs per call of a program in a process of its own; inf if that fails."""
    failed = child([*busy, "--time", name, str(target), str(folder)], "none", 200.0)
    if failed:
        print(name, folder.name, "timing", failed, flush=True)
    return math.inf if failed else float(json.loads(target.read_text()))


def child(arguments: list[str], starter: str, seconds: float) -> str:
    """Run this module in a process with an empty home; returns why it failed, "" otherwise."""
    with tempfile.TemporaryDirectory(prefix="small-budget-") as home:
        sleeping = SLEEPING if "--busy" in arguments else {}
        known = with_bytecode(**sleeping, TENSOR_GRAPHS_HOME=home, TENSOR_GRAPHS_STARTER=starter)
        command = [sys.executable, "-m", "benchmarks.cpu.small_budgets", *arguments]
        try:
            done = subprocess.run(command, env=known, timeout=seconds, capture_output=True, text=True, check=False)
        except subprocess.TimeoutExpired:
            return f"killed after {seconds:.0f} s"
    return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["failed"])[-1][:300]


def table(found: dict[str, Any]) -> str:
    """The table: times of each module's programs relative to its fastest one, their geometric means, and seconds of the
    calls, with the number of kernels measured in them."""
    calls = [f"{x}, s (kernels)" for x in LABELS]
    lines = [f"| module | fastest, µs | {' | '.join((*LABELS, *calls))} |", "|---" * (2 + 2 * len(LABELS)) + "|"]
    ratios: dict[str, list[float]] = {label: [] for label in LABELS}
    for name, parts in found.items():
        if us := parts.get("us"):
            best = min(us.values())
            for label in us:
                ratios[label].append(us[label] / best)
            cells = [f"{us[x] / best:.2f}" if x in us else "" for x in LABELS]
            took = [
                f"{p['took_s'] / p['slowdown']:.1f} ({p['measured_now']})" if "took_s" in p else "" for p in (parts.get(x, {}) for x in LABELS)
            ]  # fmt: skip
            lines.append(f"| {name} | {best:.0f} | {' | '.join((*cells, *took))} |")
    means = [f"{math.exp(sum(map(math.log, r)) / len(r)):.2f}" if r else "" for r in ratios.values()]
    return "\n".join([*lines, f"| geometric mean | | {' | '.join(means)} |{' |' * len(LABELS)}"])


def main() -> None:
    """Parse the command line, run the searches, time the programs, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--to", type=Path, default=WORK / "small_budget_cpu")
    parser.add_argument("--only", nargs="+", default=[*OWN, *JUDGED])
    parser.add_argument("--labels", nargs="+", choices=LABELS, default=list(LABELS))
    parser.add_argument("--budget", type=float, default=5.0)
    parser.add_argument("--reference", type=float, default=60.0)
    parser.add_argument("--busy", action="store_true", help="the machine is busy: budgets and times by CPU time")
    parser.add_argument("--deterministic", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--time", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    busy = ["--busy"] if options.busy else []
    if options.child:
        name, seconds, to = options.child
        search(name, float(seconds), Path(to), options.busy, options.deterministic)
        return
    if options.time:
        name, target, folder = options.time
        Path(target).write_text(json.dumps(timed(name, Path(folder), options.busy)))
        return
    options.to.mkdir(parents=True, exist_ok=True)
    child([*busy, "--child", options.only[0], "1", str(options.to / "first")], "", 300.0)  # compiles bytecode
    file = options.to / "results.json"
    found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    for name in options.only:
        parts = found.setdefault(name, {})
        for label in options.labels:
            folder = options.to / name / label
            folder.parent.mkdir(parents=True, exist_ok=True)
            budget = options.reference if label == "reference" else options.budget
            fixed = ["--deterministic"] if label == "deterministic" else []
            arguments = [*busy, *fixed, "--child", name, str(budget), str(folder)]
            failed = child(arguments, "none" if label == "cold" else "", 40 * budget + 60)
            report = {} if failed else json.loads(folder.with_suffix(".json").read_text())
            kept = (
                "slowdown",
                "took_s",
                "cpu_s",
                "cost_us",
                "priced",
                "measured_now",
                "seconds",
                "search_stopped",
                "omitted",
                "warnings",
                "jobs",
            )
            parts[label] = {"failed": failed} if failed else {k: report[k] for k in kept if k in report}
            print(
                name,
                label,
                failed or {k: parts[label].get(k) for k in ("took_s", "cost_us", "priced", "measured_now")},
                flush=True,
            )
        programs = {x: f for x in LABELS if (f := options.to / name / x).is_dir()}
        passes = [
            {x: fastest(name, f, options.to / "us.json", busy) for x, f in programs.items()} for _ in range(PASSES)
        ]
        parts["us"] = {x: min(p[x] for p in passes) for x in programs if passes[0][x] < math.inf}
        print(name, {k: round(v) for k, v in parts["us"].items()}, flush=True)
        file.write_text(json.dumps(found, indent=1) + "\n")
    print(table(found))


if __name__ == "__main__":
    main()
