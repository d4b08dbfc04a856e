"""Extraction of public e-graphs: the Tensat BERT e-graph is the figure; `python -m benchmarks.extraction.public_egraphs
[FOLDER] [--time-limit S]` solves every e-graph of a folder, and e-graphs of 100,000 e-nodes within 5 s each, and writes
tables.

Cost is in the unit of each file; `best greedy` is the cheapest of the greedies on the original e-graph; `bound` is
proven.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

from tensor_graphs.extract.solve.extraction import Extraction
from tensor_graphs.extract.solve.greedy import best_greedy
from tensor_graphs.extract.solve.problem import Problem, evaluate
from tensor_graphs.extract.solve.serialize import read_egraph
from tensor_graphs.extract.solve.solve import METHODS, solve

from ..common import DATA, QUICK, data, row
from ..models import egraphs

HERE = Path(__file__).parents[1]
OPTIMUM = 0.70472
HEADER = "| file | nodes | classes | best greedy | cost | bound | optimal | seconds | CPU s | method |\n|---|---|---|---|---|---|---|---|---|---|"


def line(name: str, problem: Problem, found: Extraction, cpu: float) -> str:
    """Check an extraction, and return it as a line of the table; `cpu`: CPU seconds of the solve."""
    greedy = best_greedy(problem.rows)[0]
    assert evaluate(problem, found.choice) == found.cost <= greedy * (1 + 1e-12)
    cells = (
        name,
        f"{problem.n_nodes:,}",
        f"{problem.n_classes:,}",
        f"{greedy:.6g}",
        f"{found.cost:.6g}",
        f"{found.lower_bound:.6g}",
        "yes" if found.optimal else f"gap {found.gap:.2%}",
        f"{found.seconds:.2f}",
        f"{cpu:.2f}",
        found.method,
    )
    return "| " + " | ".join(cells) + " |"


def main() -> dict[str, Any]:
    """Result for the figures: the BERT e-graph, read and solved within 10 s."""
    began = time.perf_counter()
    problem = read_egraph(data("extraction/tensat/bert.json.gz"))
    read = time.perf_counter() - began
    found = solve(problem, time_limit=10.0)
    proven = found.optimal and abs(found.cost - OPTIMUM) < 5e-6
    return {
        "rows": [
            row("extraction of the Tensat BERT e-graph", f"proven optimum {OPTIMUM} within 10 s",
                f"{found.cost:.5f}, {'proven' if found.optimal else f'bound {found.lower_bound:.5f}'} in {found.seconds:.1f} s "
                f"(reading {read:.1f} s; {found.method})", proven and found.seconds <= 10.0)
        ],
        "details": {"cost": found.cost, "bound": found.lower_bound, "stats": found.stats, "quick": QUICK},
    }  # fmt: skip


LARGE_SECONDS = 5.0
LARGE_NODES = 10_000 if QUICK else 100_000


def large() -> list[str]:
    """Lines for e-graphs too large for a proof: costs of greedy algorithms and of the whole solver in 5 s."""
    lines = []
    for name, problem in egraphs.large(LARGE_NODES):
        began = time.process_time()
        found = solve(problem, time_limit=LARGE_SECONDS)
        cpu = time.process_time() - began
        lines.append(line(f"{name}: {egraphs.SHAPES[name].__doc__.partition('.')[0]}", problem, found, cpu))  # type: ignore[union-attr]
        print(lines[-1], flush=True)
    return lines


def table() -> None:
    """Print each row of the tables when it is measured, then write them to results/extraction.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=DATA / "extraction")
    parser.add_argument("--time-limit", type=float, default=10.0)
    parser.add_argument("--method", choices=METHODS, default="auto")
    options = parser.parse_args()
    lines = [HEADER]
    print(HEADER)
    for path in sorted(options.folder.rglob("*.json.gz"), key=lambda p: ("fuzz" in p.parts, p)):
        problem = read_egraph(path)
        began = time.process_time()
        found = solve(problem, method=options.method, time_limit=options.time_limit)
        cpu = time.process_time() - began
        name = f"{path.parent.name}/{path.name.removesuffix('.json.gz')}"
        lines.append(line(name if len(name) < 44 else name[:40] + "...", problem, found, cpu))
        print(lines[-1], flush=True)
    if options.method == "auto":
        print(HEADER)
        more = [HEADER, *large()]
        load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
        note = f"""
Time limit {options.time_limit:g} s each; seconds are wall time of all steps but reading the file, CPU s what this process
used of {cores} cores. Load average at the end: {load:.1f}; above {cores} other jobs held the cores, and a quiet machine
takes between CPU s / {cores} (CP-SAT) and CPU s (everything else has one thread).

## {LARGE_NODES:,} e-nodes, {LARGE_SECONDS:g} s

E-graphs made at random (`benchmarks/models/egraphs.py`). The bound is weak where the whole is one piece that cannot be proved.

"""
        target = HERE / "results/extraction.md"
        target.parent.mkdir(exist_ok=True)
        target.write_text(
            "# Extraction of public e-graphs\n\n" + "\n".join(lines) + "\n" + note + "\n".join(more) + "\n"
        )


if __name__ == "__main__":
    table()
