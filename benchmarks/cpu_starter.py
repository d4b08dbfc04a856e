"""Starter rows of this machine's CPU: `nice -n 0 python -m benchmarks.cpu_starter --to FOLDER [--rounds 4] [--steps jobs time export]`.

    jobs    match the kernels of the blocks in cpu_training_models.py; those of the cheapest plans at stated prices, their rivals
            and a sample of the others become jobs (FOLDER/jobs.jsonl)
    time    time every job, in several rounds in different orders, minutes apart; the first one checks results as well
            (FOLDER/times.jsonl; a later run adds rounds)
    export  FOLDER/starter: a kernel's time is that of its calmest round; calibration likewise

Disturbance by other processes only adds time, up to a factor of hundreds for kernels of several threads, so the calmest round is
the best estimate: the one with the smallest time that a tenth of its samples reach. A kernel is exported if its second calmest round
agrees within AGREEING. `export` prints how far the estimates from the odd and from the even rounds alone differ.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from tensor_graphs.backends.registry import select
from tensor_graphs.backends.tuning.cpu_worker import BUSY, PRELOAD, WALL, encode
from tensor_graphs.backends.tuning.jobs import read_job, read_jobs, write_jobs
from tensor_graphs.backends.tuning.keys import key_of
from tensor_graphs.backends.tuning.measure_cpu import CpuWorkerProcess
from tensor_graphs.costdb.keys.key import Work
from tensor_graphs.costdb.store import calibrate
from tensor_graphs.costdb.store.schema import AccuracyRow, Row, TimingRow
from tensor_graphs.costdb.store.starter import export_starter
from tensor_graphs.costdb.store.store import Store
from tensor_graphs.extract.model.kernel import Call, Candidate, Template
from tensor_graphs.extract.model.work import call_work

from .common import WORK

PLANS, OTHERS = 3, 24  # plans whose kernels become jobs, and kernels drawn from the others, per block
SAMPLING_S = 0.03  # of one job in one round; up to four times that if disturbed
AGREEING = 1.15  # largest ratio of the two calmest rounds of a kernel
KEPT = 15  # samples of a round that are kept, evenly over their order
SLEEPING = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0"}  # threads that wait use no CPU time


# ---------------------------------------------------------------- jobs
def candidates(name: str) -> list[Candidate]:
    """Kernels of a block: of the cheapest plans at stated prices, their rivals, and others at random."""
    import torch

    from tensor_graphs.explorer.export_jobs import lacking
    from tensor_graphs.options import Options
    from tensor_graphs.pipeline.choose import choose
    from tensor_graphs.pipeline.match import hypergraph
    from tensor_graphs.pipeline.prepare import prepare
    from tensor_graphs.pipeline.prices import CostPricer
    from tensor_graphs.pipeline.rewrite import rewrite
    from tensor_graphs.pipeline.session import Session, open_store
    from tensor_graphs.pipeline.source import as_graph
    from tensor_graphs.progress import Progress

    from .cpu_training_models import models

    torch.manual_seed(0)
    module, inputs = models()[name]()
    session = Session(Options(backend="auto", budget=60.0, measure=False), Progress())
    with torch.no_grad():
        graph = as_graph(module.eval(), inputs)
    prepared = prepare(session, graph, {})
    found = hypergraph(session, rewrite(session, prepared.work).view, select("auto"))
    with open_store(session) as store:
        choice = choose(session, found, CostPricer(store), None)
    likely = {key_of(c.template, c.call).digest: c for c in lacking(choice, PLANS)}
    every = {key_of(c.template, c.call).digest: c for c in found.candidates if not c.is_view}
    others = sorted(every.keys() - likely.keys())
    drawn = random.Random(name).sample(others, min(OTHERS, len(others)))
    session.lowerings.close()
    return [*likely.values(), *(every[d] for d in drawn)]


def make_jobs(to: Path, only: Sequence[str]) -> None:
    """Write the jobs of all blocks."""
    from .cpu_training_models import models

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
    """Time all jobs in rounds; each result is one line, so that a later run adds rounds."""
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
def calmest(rounds: Mapping[int, Sequence[float]], of: Sequence[int] = ()) -> list[float]:
    """The samples of the round with the smallest median, of all rounds or of some."""
    return list(min((us for r, us in rounds.items() if not of or r in of), key=median, default=[]))


def export(to: Path) -> None:
    """Write the starter rows, and print how well the rounds agree."""
    rounds: dict[str, dict[int, list[float]]] = defaultdict(dict)
    errors: dict[str, dict[str, Any]] = {}
    probes: dict[str, list[float]] = defaultdict(list)
    for line in read_times(to):
        if "probe" in line:
            probes[line["probe"]] += line["us"][: max(1, len(line["us"]) // 2)]
        elif "us" in line:
            rounds[line["digest"]][line["round"]] = line["us"]
            errors[line["digest"]] = line
    last = max(r for by in rounds.values() for r in by)
    odd, even = list(range(1, last + 1, 2)), list(range(0, last + 1, 2))
    both = [(calmest(by, odd), calmest(by, even)) for by in rounds.values()]
    apart = [abs(np.log(median(a) / median(b))) for a, b in both if a and b]
    print(f"{len(rounds)} kernels, {last + 1} rounds; odd and even rounds differ by {np.expm1(np.median(apart)):.1%} in the median, "
          f"{np.expm1(np.quantile(apart, 0.9)):.1%} at the ninth decile")  # fmt: skip
    rows: list[Row] = []
    for digest, (template, call) in calls(to).items():
        if digest not in rounds:
            continue
        common: dict[str, Any] = {"key": key_of(template, call), "work": Work(*call_work(template, call)), "threads": 2}
        us = calmest(rounds[digest])
        line = errors[digest]
        norms = {k: v for k, v in line["error"].items() if np.isfinite(v) or k == "rel_fro"}
        rows += [TimingRow(samples=us, **common), AccuracyRow(reference=line["reference"], **norms, **common)]
    for row in calibrate.measure(seconds=0.3):
        if us := sorted(probes[row.key.name])[: max(3, len(probes[row.key.name]) // 4)]:
            rows.append(replace(row, samples=us))
    store = Store(to / "store")
    store.add(rows)
    for written in export_starter(store.root, to / "starter"):
        print(written)


def main() -> None:
    """Parse, run the steps."""
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
