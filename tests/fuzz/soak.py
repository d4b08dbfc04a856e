"""Many optimizations in one process: does it keep memory, file descriptors, child processes or threads?

    python -m tests.fuzz.soak --count 1000 --threads 1 [--measured 25] [--seed 0]

Every graph is another one, so that all that is kept by graph grows. Prints the process' resources ten times, each time
when nothing is under way and after garbage collection, then the growth of memory per optimization (least squares over
the second half), and what share of it are pages of files, pages of anonymous memory, memory in use of the C heap,
blocks of Python's allocator, objects of the garbage collector, and entries of memo tables.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import itertools
import os
import random
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import tensor_graphs as tg
from tensor_graphs.backends.runtime.heap import trim

STAGES = 4  # of a graph, at most
BACKENDS = ("auto", "numpy", "torch")
LIMITS = tg.Limits(iterations=2, nodes=1000, seconds=5.0)


def graph(seed: int, stages: int | None = None) -> tuple[tg.Tensor, dict[str, Any]]:
    """An expression over one input x [rows, columns] float32 and its weights by name: products, norms, softmax,
    pointwise chains and views, with sizes and constants drawn by the seed."""
    rng, data = random.Random(seed), np.random.default_rng(seed)
    rows, columns = rng.randint(2, 48), rng.randint(2, 48)
    value, params = tg.input("x", (rows, columns)), dict[str, Any]()
    for stage in range(rng.randint(1, STAGES) if stages is None else stages):
        columns, kind = int(value.shape[1]), rng.randrange(6)
        if kind == 0:
            name, wide = f"w{stage}", rng.randint(2, 48)
            params[name] = (data.standard_normal((columns, wide)) / columns**0.5).astype(np.float32)
            value = value @ tg.param(name, (columns, wide))
        elif kind == 1:
            name = f"g{stage}"
            params[name] = data.standard_normal(columns).astype(np.float32)
            value = tg.rms_norm(value, tg.param(name, (columns,)), eps=1e-5)
        elif kind == 2:
            value = tg.softmax(value * rng.uniform(0.5, 2.0)) + rng.uniform(0.1, 1.0)
        elif kind == 3:
            value = value.transpose((1, 0)) * rng.uniform(0.5, 1.5)
        elif kind == 4:
            value = tg.tanh(value * rng.uniform(0.5, 1.5) + rng.uniform(-1.0, 1.0)) + value
        else:
            value = value - value.max(axis=1, keepdims=True) * rng.uniform(0.1, 0.5)
    return value, params


@dataclass(frozen=True)
class Resources:
    """What a process has: resident memory in KB, open file descriptors, child processes, threads."""

    memory: int
    files: int
    children: int
    threads: int


def resources() -> Resources:
    """Those of this process, when garbage was collected and freed memory was given back."""
    gc.collect()
    trim()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    children = 0
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # the thread has ended
            children += len((task / "children").read_text().split())
    memory = pages * os.sysconf("SC_PAGE_SIZE") // 1024
    return Resources(memory, len(os.listdir("/proc/self/fd")), children, threading.active_count())


class _Heap(ctypes.Structure):
    """`mallinfo2` of glibc, in bytes."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in [
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        ]
    ]


def details() -> dict[str, int]:
    """Where the memory of this process is, by name: KB of resident file and anonymous pages, of the C heap in use and
    free (0 without glibc 2.33), and of its mapped blocks; numbers of blocks of Python's allocator and of objects of the
    garbage collector."""
    rollup = Path("/proc/self/smaps_rollup").read_text()
    pages = {line.split(":")[0]: int(line.split()[1]) for line in rollup.splitlines()[1:]}
    heap = _Heap()
    with suppress(AttributeError, OSError):
        info = ctypes.CDLL(None).mallinfo2
        info.restype = _Heap
        heap = info()
    return {
        "file pages": pages["Rss"] - pages["Anonymous"],
        "anonymous pages": pages["Anonymous"],
        "heap in use": heap.uordblks // 1024,
        "heap free": heap.fordblks // 1024,
        "heap mapped": heap.hblkhd // 1024,
        "Python blocks": sys.getallocatedblocks(),
        "collected objects": len(gc.get_objects()),
    }


def optimized(seed: int, costdb: str, measured: int = 0) -> None:
    """Optimize and run one graph: every third one is rewritten, with the kernels of a third of the backends each, and
    every `measured`-th one is measured. Raises AssertionError where the report says that it is wrong."""
    expression, params = graph(seed)
    measure = measured > 0 and seed % measured == 0
    program = tg.optimize(
        expression, params=params, budget=1.0, limits=LIMITS, measure=measure, costdb=costdb, effort=int(seed % 3 == 0),
        backend=BACKENDS[seed // 3 % len(BACKENDS)],
    )  # fmt: skip
    verification = program.report.verification
    assert verification is None or verification["passed"], f"graph {seed} is wrong: {verification}"
    shape = program.manifest.inputs[0][1]
    assert np.isfinite(program(np.full(shape, 0.25, np.float32))).all()


def soak(
    count: int, threads: int, measured: int = 25, seed: int = 0, samples: int = 10, say: bool = True
) -> list[tuple[int, Resources]]:
    """(optimizations so far, resources then): first when all that is made once has been made, then `samples` times."""
    found: list[tuple[int, Resources]] = []
    with tempfile.TemporaryDirectory() as costdb:
        done = 0
        for part in [min(count // 10, 20), *([count // samples] * samples)]:
            seeds = range(seed + done, seed + done + part)
            with ThreadPoolExecutor(threads) as pool:
                for finished in [pool.submit(optimized, k, costdb, measured) for k in seeds]:
                    finished.result()
            done += part
            found.append((done, resources()))
            if say:
                print(f"{done:5d}  {found[-1][1]}  {details()}", flush=True)
    return found


def slope(found: Sequence[tuple[int, Resources]]) -> float:
    """KB of memory that an optimization adds: the median slope between any two samples after the first quarter
    (Theil-Sen), which one step of the allocator (2 MB) does not decide."""
    later = found[len(found) // 4 :]
    pairs = itertools.combinations([(n, r.memory) for n, r in later], 2)
    return float(median((most - least) / (n - m) for (m, least), (n, most) in pairs))


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.soak")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--measured", type=int, default=25, help="every how many graphs one is measured; 0: none")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    began = time.monotonic()
    found = soak(given.count, given.threads, given.measured, given.seed)
    print(f"{slope(found):.1f} KB per optimization in the second half, {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
