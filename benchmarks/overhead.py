"""What calling a saved program costs beyond its kernels: 200 small NumPy kernels against the same calls by hand."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import tensor_graphs.egraph.ir.builders as t
from tensor_graphs.backends.program.program import Program
from tensor_graphs.backends.program.saved_program import load_program
from tensor_graphs.backends.registry import backend
from tensor_graphs.backends.tuning.unfused import direct_plan
from tensor_graphs.egraph.ir.graph import Graph

from .common import row

KERNELS = 200
SIZE = 16


def chain() -> Graph:
    """x → tanh → + x → … of 200 small kernels."""
    x = t.input("x", (SIZE,))
    y = x
    for _ in range(KERNELS // 2):
        y = t.tanh(y) + x
    return Graph.of(y, name="chain")


def by_hand(x: Any) -> Callable[[], None]:
    """The same ufunc calls in a loop-free closure written by hand: names, buffers and nothing else."""
    out = np.empty_like(x)
    lines = ["def run(x):", "    np.tanh(x, out=out)", "    np.add(out, x, out=out)"]
    for _ in range(KERNELS // 2 - 1):
        lines += ["    np.tanh(out, out=out)", "    np.add(out, x, out=out)"]
    space: dict[str, Any] = {"np": np, "out": out}
    exec("\n".join(lines), space)
    run = space["run"]
    return lambda: run(x)


def overhead_us(rounds: int = 400) -> dict[str, float]:
    """Fastest µs of both per call, and the overhead per kernel; the two are timed in turn."""
    x = np.linspace(-1, 1, SIZE, dtype=np.float32)
    with tempfile.TemporaryDirectory() as folder:
        program = load_program(Program(direct_plan(chain(), [backend("numpy")])).save(Path(folder) / "chain"))
        program(x)
    calls: dict[str, Callable[[], Any]] = {"program": lambda: program(x), "hand": by_hand(x)}
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.perf_counter_ns()
            call()
            best[name] = min(best[name], (time.perf_counter_ns() - start) / 1000)
    return {**best, "overhead_per_kernel": (best["program"] - best["hand"]) / KERNELS}


def main() -> dict[str, Any]:
    """The overhead per kernel in ns: fastest call of each, since nothing but disturbance makes one slower."""
    found = overhead_us()
    each = found["overhead_per_kernel"]
    return {
        "rows": [
            row(f"calling a saved program, overhead beyond the kernels, NumPy, {KERNELS} small kernels", "≤ 1 µs a kernel",
                f"{1000 * each:.0f} ns a kernel (program {found['program']:.1f} µs, the same calls by hand {found['hand']:.1f} µs)",
                each <= 1.0)
        ],
        "details": found,
    }  # fmt: skip
