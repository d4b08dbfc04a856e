"""How time and memory of an optimization grow with the number of operations, graph by graph: `python -m
benchmarks.saturation.growth`.

Each row is one optimization in a process of its own, kernels neither remembered nor measured before: seconds of the
whole call and of each stage, CPU seconds of the process, peak memory, and what the report says was cut. `--sizes 1000
2000 --kinds chain` picks some.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

import tensor_graphs as tg
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.ir.tensor import Tensor

SIZES = (1000, 2000, 4000)
SHAPE = (16, 16)


def chain(n: int) -> list[Tensor]:
    """Roots of a chain of `n` operations."""
    x = tg.input("x", SHAPE)
    for i in range(n):
        x = tg.tanh(x) if i % 3 == 0 else x + 0.001 * (i + 1) if i % 3 == 1 else x * (1.0 + 0.0001 * i)
    return [x]


def wide(n: int) -> list[Tensor]:
    """Roots: `n` / 2 outputs that share only the input, each with a constant of its own."""
    x = tg.input("x", SHAPE)
    return [tg.tanh(x * (1.0 + 0.001 * i)) for i in range(n // 2)]


def tree(n: int) -> list[Tensor]:
    """Root of a balanced tree of `n` sums."""
    x = tg.input("x", SHAPE)
    level = [x * (1.0 + 0.001 * i) for i in range(n // 2)]
    while len(level) > 1:
        level = [a + b for a, b in zip(level[::2], level[1::2])] + level[len(level) // 2 * 2 :]
    return level


def shared(n: int) -> list[Tensor]:
    """Root of a chain in which every value is read twice: written out as a tree, it has 2**(n / 2) operations."""
    x = tg.input("x", SHAPE)
    for i in range(n // 2):
        x = x + x * (1.0 + 0.001 * i)
    return [x]


def crossed(n: int) -> list[Tensor]:
    """Root of a chain in which value i reads the values i - 1 and i / 2."""
    values = [tg.input("x", SHAPE)]
    for _ in range(n // 2):
        values.append(tg.tanh(values[-1] + values[len(values) // 2]))
    return values[-1:]


def loop(n: int) -> list[Tensor]:
    """Root of an unrolled recurrence over one matrix, of about `n` operations."""
    x, w = tg.input("x", SHAPE), tg.param("w", SHAPE)
    h = x
    for _ in range(n // 3):
        h = tg.tanh(h @ w + x)
    return [h]


def layers(n: int) -> list[Tensor]:
    """Root of repeated layers with weights of their own, of about `n` operations."""
    x = tg.input("x", SHAPE)
    for i in range(n // 4):
        x = x + tg.relu(x @ tg.param(f"w{i}", SHAPE)) @ tg.param(f"v{i}", SHAPE)
    return [x]


KINDS: dict[str, Callable[[int], list[Tensor]]] = {
    f.__name__: f for f in (chain, wide, tree, shared, crossed, loop, layers)
}


def graph(kind: str, n: int) -> Graph:
    """A graph of one kind with about `n` operations, its weights bound."""
    found = Graph.of(KINDS[kind](n))
    rng = np.random.default_rng(0)
    names = [str(leaf.attr("name")) for leaf in found.leaves("param")]
    return replace(found, params={name: 0.1 * rng.standard_normal(SHAPE).astype(np.float32) for name in names})


def measured(kind: str, n: int, budget: float) -> dict[str, Any]:
    """Figures of one optimization in this process."""
    import resource

    built = graph(kind, n)
    began, cpu = time.monotonic(), time.process_time()
    program = tg.optimize(built, budget=budget, again=True)
    assert program.report is not None
    return {
        "kind": kind, "operations": len(built.nodes()), "budget": budget, "seconds": time.monotonic() - began,
        "cpu": time.process_time() - cpu, "mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
        "stages": program.report.seconds, "cut": program.report.omitted, "kernels": program.report.kernels_after,
    }  # fmt: skip


def apart(kind: str, n: int, budget: float) -> dict[str, Any]:
    """Figures of one optimization in a process of its own."""
    arguments = [sys.executable, "-m", "benchmarks.saturation.growth", "--one", kind, str(n), str(budget)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--budget", type=float, default=3.0)
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.one:
        print(json.dumps(measured(chosen.one[0], int(chosen.one[1]), float(chosen.one[2]))))
        return
    print(f"{'kind':8} {'nodes':>6} {'s':>6} {'CPU s':>6} {'MiB':>5}  longest stages; cut")
    for kind in chosen.kinds:
        for n in chosen.sizes:
            row = apart(kind, n, chosen.budget)
            longest = sorted(row["stages"].items(), key=lambda s: -s[1])[:3]
            told = ", ".join(f"{name} {seconds:.1f}" for name, seconds in longest)
            numbers = f"{row['operations']:6} {row['seconds']:6.1f} {row['cpu']:6.1f} {row['mib']:5}"
            print(f"{kind:8} {numbers}  {told}; {', '.join(row['cut']) or 'nothing'}", flush=True)


if __name__ == "__main__":
    main()
