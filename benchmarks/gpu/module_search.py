"""Searches for modules, one at a time, then whole calls beside eager PyTorch and `torch.compile`: `python -m
benchmarks.gpu.module_search NAME ... [--budget S] [--modes MODE ...] [--to FILE]`.

Modules of models/gpu_module_table.py, each in a process of its own that ends after 4 budgets. Unlike `modules`,
nothing else runs beside a search. Prints µs of a call in a row of calls (medians of alternating rounds,
`call_overhead.in_turn`) and whether a program runs; `--to` appends records as lines of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

SETS = 8  # sets of inputs, at addresses of their own


def searched(name: str, budget: float, modes: list[str]) -> dict[str, Any]:
    """Record of a module: seconds of `optimize`, what runs, the report, µs of each form."""
    import torch

    import tensor_graphs as tg

    from ..models.gpu_call_models import build
    from .call_overhead import in_turn

    module, given = build(name)
    module, sets = module.cuda(), [tuple(x.cuda() for x in given) for _ in range(SETS)]
    start = time.monotonic()
    program = tg.optimize(module, sets[0], budget=budget)
    took = time.monotonic() - start
    forms = {"ours": program, "eager": module} | {m: torch.compile(module, mode=m, dynamic=False) for m in modes}
    calls = {label: lambda i, form=form: form(*sets[i % SETS]) for label, form in forms.items()}
    with torch.no_grad():
        for call in calls.values():
            for i in range(SETS):
                call(i)
        us = {label: round(found["call_us"], 1) for label, found in in_turn(calls).items()}
    return {
        "name": name,
        "optimize_s": round(took, 1),
        "runs": program.report.runs,
        "us": us,
        "text": str(program.report),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", metavar="NAME")
    parser.add_argument("--budget", type=float, default=20.0, help="seconds of each optimization")
    parser.add_argument("--modes", nargs="*", default=["reduce-overhead"], help="modes of torch.compile")
    parser.add_argument("--to", type=Path, help="file to which records are appended")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        warnings.simplefilter("ignore")
        print(json.dumps(searched(options.names[0], options.budget, options.modes)), flush=True)
        os._exit(0)  # graphs of peers may end a process at its exit
    for name in options.names:
        command = [
            sys.executable,
            "-m",
            "benchmarks.gpu.module_search",
            name,
            "--child",
            "--budget",
            str(options.budget),
        ]
        command += ["--modes", *options.modes]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=4 * options.budget + 30)
            record = json.loads(done.stdout.strip().splitlines()[-1])
        except (subprocess.TimeoutExpired, IndexError, ValueError) as error:
            print(f"{name}: no result ({type(error).__name__})", flush=True)
            continue
        ratio = min(us for label, us in record["us"].items() if label != "ours") / record["us"]["ours"]
        print(
            f"{name}: {record['us']}, {ratio:.2f} x the best peer, {record['runs']}, {record['optimize_s']} s",
            flush=True,
        )
        if options.to:
            with options.to.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
