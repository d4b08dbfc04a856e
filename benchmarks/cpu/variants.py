"""Variants and whole models at small sizes on a CPU: `python -m benchmarks.cpu.variants --results FILE [names]`,
`--table FILE`.

The tables of `variants.py`, `further.py`, `recurrent.py` and `whole_models.py`, each row in a process of its own, with
limits of time and memory; rows are appended to FILE, and what is in it is skipped. A row is right if all results have
eager's types and an error against eager in float64 of at most eight times eager's own plus 1e-5 (relative to the norm),
or the variant's tolerance. Times are those of calls as a user makes them, eager's and ours in turn: lower quartiles of
one thread's time, without waits for a core. "runs" says what `tg.optimize` chose. Budgets are multiplied by the
slowdown of a busy machine (see small_budgets.py). `torch.compile` is not compared: Inductor needs more than half a
minute of a busy machine for each variant.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch

import tensor_graphs as tg
from benchmarks.cpu.small_budgets import slowdown
from benchmarks.models import further, recurrent, whole_models  # noqa: F401  (two register their variants)
from benchmarks.models import workload_variants as variants
from benchmarks.models.workloads import flat
from benchmarks.torch_compile.architectures import error, in_child
from tensor_graphs.pipeline.execution.timing import wall_us

NOISE = 0.03
LEAST, TIMED_S = 30, 3.0  # calls of each form at least; seconds after which these are enough


def rows_of() -> dict[str, variants.Variant]:
    """All variants and models at small sizes, by name."""
    return {**variants.TINY, **whole_models.TINY}


def row(name: str, budget: float) -> dict[str, Any]:
    """The row of a variant: errors, times and what `tg.optimize` chose."""
    torch.set_num_threads(1)
    work = rows_of()[name]
    given, weights = work.arguments("cpu")
    module = work.module(weights)
    wide = [x.double() if x.is_floating_point() else x for x in (*given, *weights)]
    begun = time.perf_counter()
    with torch.no_grad():
        exact = flat(work.call(*wide))
        more: dict[str, Any] = {} if work.tolerance is None else {"tolerance": work.tolerance}
        program = tg.optimize(module, tuple(given), budget=budget * slowdown(), again=True, **more)
        seconds = time.perf_counter() - begun
        own, ours = (error(flat(call(*given)), exact) for call in (module, program))
        us: tuple[list[float], list[float]] = ([], [])
        begun = time.perf_counter()
        while len(us[0]) < LEAST or time.perf_counter() - begun < TIMED_S:
            for i in (turn := len(us[0]) % 2, 1 - turn):
                us[i].append(wall_us(lambda i=i: (module, program)[i](*given)))
    eager_us, ours_us = (quantiles(x, n=4)[0] for x in us)
    kernels = [s.template.name for s in program.plan.steps if not s.is_view]
    return {
        "name": name, "dtype": str(work.dtype).removeprefix("torch."), "right": ours <= max(8 * own + 1e-5, work.tolerance or 0), "error": ours, "eager_error": own,
        "eager_us": eager_us, "us": ours_us, "ratio": ours_us / eager_us, "kernels": len(kernels), "seconds": round(seconds, 1),
        "runs": program.report.runs,
    }  # fmt: skip


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows in Markdown."""
    timed = [r for r in rows if "ratio" in r]
    slower = [f"{r['name']} {r['ratio']:.2f}" for r in timed if r["ratio"] > 1 + NOISE]
    failed = [r["name"] for r in rows if not r["right"]]
    lines = [
        "# Variants and whole models on a CPU", "", (__doc__ or "").split("\n\n", 1)[1].strip(), "",
        f"{len(rows)} of {len(rows_of())}; {sum(r['right'] for r in rows)} right{'; not: ' + ', '.join(failed) if failed else ''}. The median takes "
        f"{median([r['ratio'] for r in timed] or [0]):.2f} of eager's time; {len(slower)} take more than {1 + NOISE:.2f} of it{': ' if slower else ''}{', '.join(slower)}.",
        "", "| variant | dtype | right | eager, µs | ours, µs | ours / eager | runs | kernels | error: ours, eager | optimize, s | not right because |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for r in rows:
        numbers = [f"{r[k]:.{d}f}" if k in r else "" for k, d in (("eager_us", 1), ("us", 1), ("ratio", 2))]
        errors = f"{r['error']:.1e}, {r['eager_error']:.1e}" if "error" in r else ""
        why = "; ".join(r.get("reasons", ())).replace("|", "/").replace("\n", " ")[:200]
        cells = [
            r["name"],
            r.get("dtype", ""),
            "yes" if r["right"] else "**no**",
            *numbers,
            r.get("runs", ""),
            r.get("kernels", ""),
            errors,
            r.get("seconds", ""),
            why,
        ]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run the variants named on the command line, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="variants and models; all if none is given")
    parser.add_argument("--results", required=True, type=Path, help="JSON lines")
    parser.add_argument("--table", type=Path, help="write the table of FILE here, without running anything")
    parser.add_argument("--seconds", type=float, default=180.0, help="limit of each row")
    parser.add_argument("--budget", type=float, default=3.0, help="seconds for each program")
    given = parser.parse_args()
    rows = (
        {r["name"]: r for r in map(json.loads, given.results.read_text().splitlines())}
        if given.results.exists()
        else {}
    )
    if given.table:
        given.table.write_text(table(list(rows.values())))
        sys.exit(not all(r["right"] for r in rows.values()))
    warnings.simplefilter("ignore")
    for name in given.names or [n for n in rows_of() if n not in rows]:
        found = in_child(name, lambda name=name: row(name, given.budget), given.seconds)
        with given.results.open("a") as file:
            file.write(json.dumps(found) + "\n")
        print(
            name,
            "right" if found["right"] else "WRONG",
            *(f"{found[k]:.2f}" for k in ("ratio",) if k in found),
            *found.get("reasons", ())[:1],
            flush=True,
        )


if __name__ == "__main__":
    main()
