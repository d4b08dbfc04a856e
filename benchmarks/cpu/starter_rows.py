"""Starter rows of this machine's CPU: `nice -n 0 python -m benchmarks.cpu.starter_rows --to FOLDER [--rounds 4]
[--steps jobs time export]`.

    jobs    match the kernels of the blocks in cpu_training_models.py; those of the cheapest plans at given prices,
            their rivals and a sample of the others become jobs (FOLDER/jobs.jsonl)
    time    time every job, in several rounds in different orders, minutes apart; the first one checks results as well
            (FOLDER/times.jsonl; a later run adds rounds, also by the other clock)
    export  FOLDER/starter: a kernel's time is that of its calmest round

On a busy machine wall-clock times of kernels of several threads are too long by up to a factor of hundreds, in all
rounds: a thread that waits for another one waits for that one's turn. So rounds may be timed by CPU time as well
(`--clock busy`: of the calling thread, or of all threads over the number of cores; waiting threads sleep). Disturbance
only adds to either, so a kernel's time is the smallest that a tenth of the samples of some round reach. `export` prints
how far the two clocks, and rounds of one clock, differ, and leaves out kernels whose calmest round neither has a median
within STEADY nor is confirmed by another one within AGREEING.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from tensor_graphs.backends.registry import select
from tensor_graphs.backends.runtime.threads import one_blas_thread
from tensor_graphs.backends.tuning.cpu_timing import BUSY, WALL
from tensor_graphs.backends.tuning.cpu_worker import PRELOAD, encode
from tensor_graphs.backends.tuning.jobs import read_job, read_jobs, write_jobs
from tensor_graphs.backends.tuning.keys import key_of
from tensor_graphs.backends.tuning.worker_process import CpuWorkerProcess
from tensor_graphs.costdb.keys.device import cores
from tensor_graphs.costdb.keys.key import Work
from tensor_graphs.costdb.store import calibrate
from tensor_graphs.costdb.store.schema import AccuracyRow, Row, TimingRow
from tensor_graphs.costdb.store.starter import export_starter
from tensor_graphs.costdb.store.store import Store
from tensor_graphs.extract.model.kernel import Call, Candidate, Template
from tensor_graphs.extract.model.work import call_work

from ..common import WORK

PLANS, OTHERS = 3, 24  # plans whose kernels become jobs, and kernels drawn from the others, per block
SAMPLING_S = 0.03  # of one job in one round; up to four times that if disturbed
STEADY, AGREEING = (
    1.1,
    1.3,
)  # largest ratio of the calmest round's median to its level; of the two calmest rounds' levels
KEPT = 15  # samples of a round that are kept, evenly over their order
SLEEPING = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0"}  # threads that wait use no CPU time


# ---------------------------------------------------------------- jobs
def candidates(name: str) -> list[Candidate]:
    """Kernels of a block for jobs: those of the cheapest plans at roofline prices, their rivals, and a random sample of
    others.
    """
    import torch

    from tensor_graphs.explorer.export_jobs import unmeasured_candidates
    from tensor_graphs.options import Options
    from tensor_graphs.pipeline.context.session import Session, open_store
    from tensor_graphs.pipeline.costs.prices import CostPricer
    from tensor_graphs.pipeline.sources.source import as_graph
    from tensor_graphs.pipeline.stages.choose import choose
    from tensor_graphs.pipeline.stages.match import hypergraph
    from tensor_graphs.pipeline.stages.prepare import prepare
    from tensor_graphs.pipeline.stages.rewrite import rewrite
    from tensor_graphs.progress import Progress

    from ..models.cpu_training_models import models

    torch.manual_seed(0)
    module, inputs = models()[name]()
    session = Session(Options(backend="auto", budget=60.0, measure=False), Progress())
    with torch.no_grad():
        graph = as_graph(module.eval(), inputs)
    prepared = prepare(session, graph, {})
    found = hypergraph(session, rewrite(session, prepared.work).view, select("auto"))
    with open_store(session) as store:
        choice = choose(session, found, CostPricer(store), None)
    likely = {key_of(c.template, c.call).digest: c for c in unmeasured_candidates(choice, PLANS)}
    every = {key_of(c.template, c.call).digest: c for c in found.candidates if not c.is_view}
    others = sorted(every.keys() - likely.keys())
    drawn = random.Random(name).sample(others, min(OTHERS, len(others)))
    session.lowerings.close()
    return [*likely.values(), *(every[d] for d in drawn)]


def make_jobs(to: Path, only: Sequence[str]) -> None:
    """Write the jobs of the blocks named in `only` (empty: all) to jobs.jsonl."""
    from ..models.cpu_training_models import models

    found: list[Candidate] = []
    for name in only or list(models()):
        try:
            own = candidates(name)
        except Exception as error:  # the other blocks have jobs nevertheless
            print(f"{name}: {type(error).__name__}: {str(error)[:300]}", flush=True)
            continue
        found += own
        print(f"{name}: {len(own)} kernels", flush=True)
        write_jobs(to / "jobs.jsonl", found)


# ---------------------------------------------------------------- times
def calls(to: Path) -> dict[str, tuple[Template, Call]]:
    """The template and call of every job, by its key's digest."""
    found: dict[str, tuple[Template, Call]] = {}
    for job in read_jobs(to / "jobs.jsonl"):
        assert not isinstance(job, str), job
        template, (call,) = read_job(job)
        found[key_of(template, call).digest] = template, call
    return found


def time_jobs(to: Path, rounds: int, seconds: float, clock: str) -> None:
    """Time all jobs in rounds; each result is one line of times.jsonl, so that a later run adds rounds.

    `seconds` limits the call. `clock`: wall-clock or CPU time.
    """
    known, until = calls(to), time.monotonic() + seconds
    done = list(read_times(to))
    first = 1 + max((line["round"] for line in done), default=-1)
    failed = {line["digest"] for line in done if "failed" in line}
    checked = {line["digest"] for line in done if "error" in line}
    worker = CpuWorkerProcess(environment={PRELOAD: "torch", **(SLEEPING if clock == BUSY else {})})
    with (to / "times.jsonl").open("a") as file, closing(worker):
        for number in range(first, first + rounds):
            order = sorted(known.keys() - failed)
            random.Random(number).shuffle(order)
            for place, digest in enumerate(order):
                if time.monotonic() > until:
                    return
                if place % 50 == 0:
                    for row in calibrate.measure(seconds=0.3):
                        line = {
                            "round": number,
                            "digest": row.key.digest,
                            "us": sorted(row.samples),
                            "probe": row.key.name,
                        }
                        file.write(json.dumps(line) + "\n")
                job = {**encode(*known[digest]), "seconds": SAMPLING_S, "check": digest not in checked, "clock": clock}
                reply, line = worker.ask(job), {"round": number, "digest": digest, "clock": clock}
                if not reply["ok"]:
                    line |= {"failed": reply["status"], "why": reply["message"][:200]}
                    failed.add(digest)
                else:
                    us = sorted(reply["samples"])
                    line["us"] = us[:: -(-len(us) // KEPT)]
                if reply["ok"] and digest not in checked:
                    line |= {"error": reply["accuracy"], "reference": reply["reference"]}
                    checked.add(digest)
                file.write(json.dumps(line) + "\n")
                file.flush()
            print(f"round {number}: {len(order)} jobs, {len(failed)} failed", flush=True)


def read_times(to: Path) -> Iterator[dict[str, Any]]:
    """The lines of times.jsonl."""
    path = to / "times.jsonl"
    yield from (json.loads(line) for line in path.read_text().splitlines()) if path.exists() else ()


# ---------------------------------------------------------------- export
def level(us: Sequence[float]) -> float:
    """The first decile of samples in µs: the time of an undisturbed call."""
    return float(np.quantile(us, 0.1))


def spread(title: str, ratios: Sequence[float]) -> None:
    """Print the median and the ninth decile of ratios."""
    if ratios:
        print(
            f"{title}: {np.median(ratios):.2f} in the median, {np.quantile(ratios, 0.9):.2f} at the ninth decile, of {len(ratios)}"
        )


def export(to: Path) -> None:
    """Write the starter rows, and print how well rounds and clocks agree."""
    rounds: dict[str, dict[str, list[list[float]]]] = defaultdict(lambda: defaultdict(list))
    errors: dict[str, dict[str, Any]] = {}
    probes: dict[str, list[float]] = defaultdict(list)
    for line in read_times(to):
        if "probe" in line:
            probes[line["probe"]] += line["us"]
        elif "us" in line:
            rounds[line["digest"]][line.get("clock", WALL)].append(line["us"])
            errors |= {line["digest"]: line} if "error" in line else {}
    walls = [sorted(map(level, by[WALL])) for by in rounds.values()]
    spread("second calmest over calmest round, wall clock", [us[1] / us[0] for us in walls if len(us) > 1])
    spread("CPU time over wall clock where rounds of the latter agree within 5 %",
           [min(map(level, by[BUSY])) / us[0] for by, us in zip(rounds.values(), walls) if by[BUSY] and us[1:] and us[1] < 1.05 * us[0]])  # fmt: skip
    kept: dict[str, list[float]] = {}
    for digest, by in rounds.items():
        best, *others = sorted([us for clock in by.values() for us in clock], key=level)
        if median(best) < STEADY * level(best) or (others and level(others[0]) < AGREEING * level(best)):
            kept[digest] = best
    print(f"{len(kept)} of {len(rounds)} kernels are steady within {STEADY:g} or confirmed within {AGREEING:g}")
    rows: list[Row] = []
    for digest, (template, call) in calls(to).items():
        if digest in kept:
            common: dict[str, Any] = {
                "key": key_of(template, call),
                "work": Work(*call_work(template, call)),
                "threads": cores(),
            }
            line, us = errors[digest], kept[digest][: max(3, len(kept[digest]) // 4)]
            norms = {k: v for k, v in line["error"].items() if np.isfinite(v) or k == "rel_fro"}
            rows += [TimingRow(samples=us, **common), AccuracyRow(reference=line["reference"], **norms, **common)]
    for row in calibrate.measure(seconds=0.3):
        us = product_us() if row.key.name == "gemm" else sorted(probes[row.key.name])
        rows.append(replace(row, samples=us[: max(3, len(us) // 50)]))
    store = Store(to / "store")
    store.add(rows)
    for written in export_starter(store.root, to / "starter"):
        print(written)


def product_us() -> list[float]:
    """Sorted times in µs of calibration's matrix product on all cores: CPU times of one thread over the number of
    cores."""
    order = 768
    a, b = (np.random.default_rng(0).random((order, order), dtype=np.float32) for _ in range(2))
    found = []
    with one_blas_thread():
        for _ in range(60):
            start = time.thread_time_ns()
            np.matmul(a, b)
            found.append((time.thread_time_ns() - start) / 1000 / cores())
    return sorted(found)


def main() -> None:
    """Parse the command line and run the steps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--to", type=Path, default=WORK / "cpu_starter")
    parser.add_argument("--steps", nargs="+", choices=("jobs", "time", "export"), default=["jobs", "time", "export"])
    parser.add_argument("--only", nargs="*", default=[], help="blocks whose kernels become jobs; default: all")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=3600.0, help="of the step `time`")
    parser.add_argument("--clock", choices=(WALL, BUSY), default=WALL, help="of the step `time`")
    options = parser.parse_args()
    options.to.mkdir(parents=True, exist_ok=True)
    if "jobs" in options.steps:
        make_jobs(options.to, options.only)
    if "time" in options.steps:
        time_jobs(options.to, options.rounds, options.seconds, options.clock)
    if "export" in options.steps:
        export(options.to)


if __name__ == "__main__":
    main()
