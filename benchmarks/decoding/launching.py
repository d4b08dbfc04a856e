"""A decode step with each overlap of its kernel launches: `python -m benchmarks.decoding.launching [NAMES] [--budget S]
[--backend B] [--overlaps W]`.

Searches a decode step of benchmarks/decoding/llm.py at random weights (or takes its plan from the plan cache), and runs
its plan with each overlap of backends/program/launch/launching.py, in turn. Prints a JSON row of the search with the
overlap that it chose, a row per overlap (µs of a step, the largest difference of logits from the first), and the table
of kernels.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np

from tensor_graphs.backends.program.launch.launching import OVERLAPS
from tensor_graphs.backends.program.program import Program
from tensor_graphs.generation import Generator

from .llm import LENGTH, generator, kernel_table
from .queued_time import timed


def measured(made: Generator, first: Program, overlaps: list[str]) -> list[dict[str, Any]]:
    """One row per overlap of launches, timed in turn."""
    programs = made._programs
    assert first.plan is not None
    runs: dict[str, Program] = {}
    rows: dict[str, dict[str, Any]] = {}
    want = None
    for overlap in overlaps:
        begun = time.perf_counter()
        rows[overlap] = {"overlap": overlap or "as measured", "us": []}
        try:
            program = first if overlap == first.plan.launching else Program(replace(first.plan, launching=overlap))
            if program is not first:
                program.share(programs.states, programs.weights)
            programs.set("length", [LENGTH // 2], "int64")
            program.flat_near()
            program.wait("a decode step")
        except Exception:
            rows[overlap]["error"] = traceback.format_exc()[-2000:]
            continue
        logits = programs.get("logits")
        want = logits if want is None else want
        rows[overlap] |= {
            "difference": float(np.abs(logits - want).max()), "largest": float(np.abs(want).max()),
            "ready_s": round(time.perf_counter() - begun, 2),
        }  # fmt: skip
        runs[overlap] = program
    for _ in range(5):
        for overlap, program in runs.items():
            programs.set("length", [LENGTH // 2], "int64")
            rows[overlap]["us"].append(round(timed(program.flat_near, lambda p=program: p.wait("a decode step")), 1))  # type: ignore[misc]
    for row in rows.values():
        row["median_us"] = median(row["us"]) if row["us"] else None
    return list(rows.values())


def main() -> None:
    """Print the rows of the models named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=["gemma-270m"])
    parser.add_argument("--budget", type=float, default=40.0)
    parser.add_argument("--backend", default=None)
    parser.add_argument("--overlaps", default=",".join(OVERLAPS))
    options = parser.parse_args()
    for name in options.names:
        begun = time.perf_counter()
        made = generator(name, options.budget, backend=options.backend)
        program = made._programs.decode()
        assert program.plan is not None and program.report is not None
        print(json.dumps({
            "model": name, "backend": options.backend, "kernels": program.plan.kernels, "plan_us": round(program.plan.cost, 1),
            "search_s": round(time.perf_counter() - begun, 1), "seconds": {k: round(v, 1) for k, v in program.report.seconds.items()}, "omitted": program.report.omitted,
                    "launching": program.plan.launching, "finalists": [(f.kernels, f.predicted_us, f.measured_us, f.chosen, f.launching) for f in program.report.finalists],
        }), flush=True)  # fmt: skip
        for row in measured(made, program, options.overlaps.split(",")):
            print(json.dumps(row), flush=True)
        for row in kernel_table(program.report, 4.1e6):
            print(json.dumps(row), flush=True)
        sys.stdout.flush()


if __name__ == "__main__":
    main()
