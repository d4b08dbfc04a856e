"""Whole calls on one CPU thread beside eager PyTorch, `torch.compile` and ONNX Runtime: `python -m
benchmarks.cpu.one_thread [--models TITLE ...] [--budget S]`.

Networks of cpu_peer_models.py, each in a process of its own, as a user calls them: tensors to modules, programs and
compiled modules, arrays to ONNX Runtime. Implementations are called in turn; times are lower quartiles of the process's
CPU time, so that waits for a core do not count, and ratios are medians over rounds. Searches begin with what is in the
cost store (TENSOR_GRAPHS_HOME). Errors are against the module in float64. The load is the number of processes that
wanted to run when a network's turn came. Results go to results/raw/cpu_peers.json and results/cpu_peers.md.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

RESULTS = Path(__file__).parents[1] / "results"
PEERS = {"eager": "eager", "compile": "torch.compile", "onnxruntime": "ONNX Runtime"}
ROUNDS, LIMIT_S = 60, 900


def compiled(module: Any, inputs: tuple[Any, ...]) -> Callable[[], Any]:
    """A call of the module compiled by `torch.compile` in its default mode."""
    import torch

    found = torch.compile(module)
    found(*inputs)
    return lambda: found(*inputs)


def measure(title: str, budget: float) -> dict[str, Any]:
    """CPU µs of all implementations of a network, their errors, and what our program consists of."""
    import torch

    import tensor_graphs as tg

    from ..models.cpu_peer_models import build
    from .convolutions import in_turn, quartile
    from .onnxruntime_call import onnxruntime_call

    warnings.simplefilter("ignore")
    module, inputs = build(title)
    began = time.monotonic()
    program = tg.optimize(module, inputs, budget=budget, again=True)
    seconds = time.monotonic() - began
    calls: dict[str, Callable[[], Any]] = {"ours": lambda: program(*inputs), "eager": lambda: module(*inputs)}
    failed = {}
    with torch.no_grad():
        for name, make in (("compile", compiled), ("onnxruntime", onnxruntime_call)):
            try:
                calls[name] = make(module, inputs)
            except Exception as error:
                failed[name] = f"{type(error).__name__}: {error}"[:200]
        exact = copy.deepcopy(module).double()(*(x.double() if x.is_floating_point() else x for x in inputs)).numpy()
        off = lambda y: np.asarray(y, np.float64).reshape(exact.shape) - exact  # ONNX Runtime gives a list of one
        error = lambda y: float(np.linalg.norm(off(y)) / np.linalg.norm(exact))
        errors = {name: error(call()) for name, call in calls.items()}
        times = in_turn(calls, ROUNDS)
    report = program.report
    return {
        "us": {n: quartile(t) for n, t in times.items()}, "errors": errors, "failed": failed, "runs": report.runs, "budget": budget,
        "ratio": {n: median(a / b for a, b in zip(t, times["ours"])) for n, t in times.items()},
        "seconds": round(seconds, 1), "kernels": [[k.name, k.count, round(k.us, 1)] for k in report.kernels],
    }  # fmt: skip


def rendered(found: dict[str, Any]) -> str:
    """The results as Markdown."""
    lines = ["# Whole calls on one CPU thread", "", __doc__.split("\n\n")[1].replace("\n", " ").strip(), "",
             f"{found['machine']}.", "",
             "| network, float32, ms | ours | " + " | ".join(f"{n} (times ours)" for n in PEERS.values())
             + " | error: ours, eager | runs | optimize, s; load | commit, date |", "|" + "---|" * 9]  # fmt: skip
    for title, r in found["networks"].items():
        cells = [
            f"{r['us'][n] / 1e3:.2f} ({r['ratio'][n]:.2f})" if n in r["us"] else f"failed: {r['failed'][n][:60]}"
            for n in PEERS
        ]
        errors = f"{r['errors']['ours']:.1e}, {r['errors']['eager']:.1e}"
        lines.append(
            f"| {title} | {r['us']['ours'] / 1e3:.2f} | {' | '.join(cells)} | {errors} | {r['runs']} | {r['seconds']}; {r['load']:.0f} | {r['at']} |"
        )
    parts = lambda r: ", ".join(f"{name} x{count}" for name, count, _ in r["kernels"])
    lines += ["", *(f"- {title}: {parts(r)}" for title, r in found["networks"].items())]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Parse the command line, measure the networks one after another, store and render after each."""
    from benchmarks.common import in_process
    from benchmarks.run import commit
    from tensor_graphs.costdb.keys.device import device_key

    from ..models.cpu_peer_models import MODELS

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=list(MODELS), metavar="TITLE", help="titles or their beginnings")
    parser.add_argument("--budget", type=float, default=40.0, help="seconds of each optimization")
    options = parser.parse_args()
    raw = RESULTS / "raw/cpu_peers.json"
    found: dict[str, Any] = json.loads(raw.read_text()) if raw.exists() else {"networks": {}}
    found["machine"] = device_key()
    for title in [t for t in MODELS if any(t.startswith(m) for m in options.models)]:
        load = os.getloadavg()[0]
        try:
            row = in_process(title, f"one_thread.measure({title!r}, {options.budget})", 1, LIMIT_S)
        except RuntimeError as error:
            print(error, flush=True)
            continue
        found["networks"][title] = row | {"load": load, "at": f"{commit()}, {time.strftime('%Y-%m-%d %H:%M')}"}
        raw.write_text(json.dumps(found, indent=1) + "\n")
        (RESULTS / "cpu_peers.md").write_text(rendered(found))
        print(
            title,
            {n: round(t) for n, t in row["us"].items()},
            {n: round(x, 2) for n, x in row["ratio"].items()},
            row["runs"],
            flush=True,
        )


if __name__ == "__main__":
    main()
