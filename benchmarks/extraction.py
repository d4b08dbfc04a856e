"""Solves every e-graph of a folder and writes a table: `python benchmarks/extraction.py [FOLDER] [--time-limit S]`.

Cost is in the unit of each file; `best greedy` is the cheapest of the greedies on the original e-graph; `bound` is proven.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

from tensor_graphs.extract.problem import Extraction, Problem, evaluate
from tensor_graphs.extract.serialize import read_egraph
from tensor_graphs.extract.solve import METHODS, solve

HERE = Path(__file__).parent
HEADER = "| file | nodes | classes | best greedy | cost | bound | optimal | seconds | CPU s | method |\n|---|---|---|---|---|---|---|---|---|---|"


def row(name: str, problem: Problem, found: Extraction, cpu: float) -> str:
    """One line of the table."""
    cells = (
        name,
        f"{problem.n_nodes:,}",
        f"{problem.n_classes:,}",
        f"{found.stats['greedy']:.6g}",
        f"{found.cost:.6g}",
        f"{found.lower_bound:.6g}",
        "yes" if found.optimal else f"gap {found.gap:.2%}",
        f"{found.seconds:.2f}",
        f"{cpu:.2f}",
        found.method,
    )
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """Print the table as it grows, then write it to results/extraction.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=HERE.parent.parent / "shared/data/extraction")
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
        assert evaluate(problem, found.choice) == found.cost <= found.stats["greedy"]
        name = f"{path.parent.name}/{path.name.removesuffix('.json.gz')}"
        lines.append(row(name if len(name) < 44 else name[:40] + "...", problem, found, cpu))
        print(lines[-1], flush=True)
    if options.method == "auto":
        load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
        note = f"""
Time limit {options.time_limit:g} s each; seconds are wall time of all steps but reading the file, CPU s what this process
used of {cores} cores. Load average at the end: {load:.1f}; above {cores} other jobs held the cores, and a quiet machine
takes between CPU s / {cores} (CP-SAT) and CPU s (everything else has one thread).
"""
        target = HERE / "results/extraction.md"
        target.parent.mkdir(exist_ok=True)
        target.write_text("# Extraction of public e-graphs\n\n" + "\n".join(lines) + "\n" + note)


if __name__ == "__main__":
    main()
