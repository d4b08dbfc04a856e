"""Overhead of calling a program, beyond its kernels: 200 small NumPy kernels, and one C kernel, beside the same calls
by hand.
"""

from __future__ import annotations

import ctypes
import operator
import tempfile
import time
from collections.abc import Callable
from functools import partial, reduce
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

import tensor_graphs.egraph.builders.builders as t
from tensor_graphs.backends.program.program import Program
from tensor_graphs.backends.program.saved_program import load_program
from tensor_graphs.backends.registry import backend
from tensor_graphs.backends.tuning.unfused import direct_plan
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.pipeline.optimize import optimize

from ..common import row

KERNELS = 200
SIZE = 16
INPUTS = (1, 4)  # of the C kernel whose calls are timed: of more inputs the sum takes several kernels


def chain() -> Graph:
    """Graph of 200 small kernels in a chain: x → tanh → + x → …"""
    x = t.input("x", (SIZE,))
    y = x
    for _ in range(KERNELS // 2):
        y = t.tanh(y) + x
    return Graph.of(y, name="chain")


def by_hand(x: Any) -> Callable[[], None]:
    """Function that makes the same ufunc calls without a loop, on preallocated buffers."""
    out = np.empty_like(x)
    lines = ["def run(x):", "    np.tanh(x, out=out)", "    np.add(out, x, out=out)"]
    for _ in range(KERNELS // 2 - 1):
        lines += ["    np.tanh(out, out=out)", "    np.add(out, x, out=out)"]
    space: dict[str, Any] = {"np": np, "out": out}
    exec("\n".join(lines), space)
    run = space["run"]
    return lambda: run(x)


def overhead_us(rounds: int = 400) -> dict[str, float]:
    """Fastest µs per call of the program and of the handwritten calls, timed in turn, and their difference per
    kernel.
    """
    x = np.linspace(-1, 1, SIZE, dtype=np.float32)
    with tempfile.TemporaryDirectory() as folder:
        program = load_program(Program(direct_plan(chain(), [backend("numpy")])).save(Path(folder) / "chain"))
        program(x)
    best = fastest({"program": lambda: program(x), "hand": by_hand(x)}, rounds)
    return {**best, "overhead_per_kernel": (best["program"] - best["hand"]) / KERNELS}


def fastest(calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Fastest µs of a call of each, timed in turn."""
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.perf_counter_ns()
            call()
            best[name] = min(best[name], (time.perf_counter_ns() - start) / 1000)
    return best


def one_kernel_us(inputs: int = 1, rounds: int = 400) -> dict[str, float]:
    """Fastest µs per call of one C kernel, tanh of 8 x 64 floats or the sum of several inputs, in four forms.

    Its program called with tensors and with arrays at new addresses, the kernel alone at fixed addresses, and eager
    PyTorch's operators.
    """
    import torch

    from tensor_graphs.backends.c.backend import generated

    given = [t.input(f"x{i}", (8, 64)) for i in range(inputs)]
    if inputs == 1:
        y = t.tanh(given[0])
        program = Program(direct_plan(Graph.of(y), [SimpleNamespace(templates=[generated(y)])]))  # type: ignore[list-item]
    else:
        program = optimize(reduce(operator.add, given), backend="c", measure=False, budget=20.0)
    tensors = [[torch.randn(8, 64) for _ in given] for _ in range(20)]
    arrays, out = [[x.numpy() for x in xs] for xs in tensors], torch.empty(8, 64)
    for _ in range(10):  # the direct function is made after eight calls
        program(*tensors[0])
    kernel, _, numbers = program._run.whole  # type: ignore[union-attr]
    addresses = [x.data_ptr() for x in (*tensors[0], out)]
    at = (ctypes.c_void_p * len(addresses))(*(addresses[n] for n in numbers))
    eager: Callable[[list[Any]], Any] = (lambda xs: torch.tanh(xs[0])) if inputs == 1 else partial(reduce, torch.add)
    forms: dict[str, Callable[[], Any]] = {
        "tensors": lambda: [program(*xs) for xs in tensors], "arrays": lambda: [program(*xs) for xs in arrays],
        "kernel": lambda: [kernel(at) for _ in tensors], "eager": lambda: [eager(xs) for xs in tensors],
    }  # fmt: skip
    return {name: us / len(tensors) for name, us in fastest(forms, rounds).items()}


def call_row(inputs: int, one: dict[str, float]) -> Any:
    """Row of the figures for calls of one C kernel with so many inputs (`one_kernel_us`)."""
    beyond = {form: one[form] - one["kernel"] for form in ("tensors", "arrays")}
    return row(f"a call beyond its kernel, one C kernel, {inputs} input{'s' * (inputs > 1)} at new addresses", "≤ 3 µs with tensors",
               f"{beyond['tensors']:.1f} µs with tensors, {beyond['arrays']:.1f} with arrays (calls {one['tensors']:.1f} and "
               f"{one['arrays']:.1f} µs, the kernel {one['kernel']:.1f}; eager PyTorch's operator {one['eager']:.1f})",
               beyond["tensors"] <= 3.0)  # fmt: skip


def main() -> dict[str, Any]:
    """Result for the figures: overhead per kernel and per call, of the fastest calls (disturbances only add time)."""
    found = overhead_us()
    each = found["overhead_per_kernel"]
    calls = {inputs: one_kernel_us(inputs) for inputs in INPUTS}
    return {
        "rows": [
            row(f"calling a saved program, overhead beyond the kernels, NumPy, {KERNELS} small kernels", "≤ 1 µs a kernel",
                f"{1000 * each:.0f} ns a kernel (program {found['program']:.1f} µs, the same calls by hand {found['hand']:.1f} µs)",
                each <= 1.0),
            *(call_row(inputs, one) for inputs, one in calls.items()),
        ],
        "details": {**found, "one_kernel_us": {str(inputs): one for inputs, one in calls.items()}},
    }  # fmt: skip
