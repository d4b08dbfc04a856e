"""Latency beside eager PyTorch, `torch.compile` and ONNX Runtime: the same module for all, two threads, rounds in turn.

ONNX Runtime's threads must not spin, because they would take the cores from the next implementation in the round.
`torch.compile` runs in its default mode and with `max-autotune`; the faster one counts. Errors are against a float64
run of the module.
"""

from __future__ import annotations

import copy
import gc
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import tensor_graphs as tg

from ..common import BUDGET, QUICK, THREADS, error, in_turn, row, set_threads, short
from ..models.peer_models import MODELS, build
from .onnxruntime_call import onnxruntime_call

SEEN = {  # ms of eager / compile / ONNX Runtime in the requirement, from another run of the same class of machine
    "BERT-base, 4 layers, T 128": "46/43/26", "GPT-2, 4 layers, T 128, with lm_head": "129/126/50",
    "Gemma-3-270M, 4 layers, T 64": "49/47/22", "ResNet-50": "37/35/25", "NasRNN, 5 steps": "4.9/4.7/3.4",
}  # fmt: skip


def main() -> dict[str, Any]:
    """Result for the figures: one row per model."""
    set_threads()
    rows, details = [], {}
    for title in MODELS:
        found = compare(title)
        details[title] = found
        rows.append(_row(title, found))
        gc.collect()
        torch._dynamo.reset()
    return {"rows": rows, "details": details}


def _row(title: str, found: dict[str, Any]) -> dict[str, Any]:
    times = found["times"]
    ms = {n: t["ms"] for n, t in times.items()}
    if "ours" not in ms:
        return row(title, "", f"failed: {found['failed']}", False)
    ours = ms["ours"]
    compiled = min((v for n, v in ms.items() if n.startswith("compile")), default=float("nan"))
    against = {"eager": ms["eager"], "compile": compiled, "ONNX Runtime": ms.get("onnxruntime", float("nan"))}
    parts = ", ".join(f"{n} {v:.2f} ms ({v / ours:.2f}x)" for n, v in against.items())
    errors = found["errors"]
    ahead = ours < ms["eager"] and not compiled <= ours
    return row(
        f"{title}: ms against eager, torch.compile, ONNX Runtime", "ahead of eager and compile; ONNX Runtime: aim for 1"
        + (f" (seen {SEEN[title]} ms)" if title in SEEN else ""),
        f"ours {ours:.2f} ± {times['ours']['mad_ms']:.2f} ms; {parts}; error {errors['ours']:.1e} (eager {errors['eager']:.1e})"
        + "".join(f"; {n} failed" for n in found["failed"]), ahead,
    )  # fmt: skip


def compare(title: str) -> dict[str, Any]:
    """Latencies of all implementations of a model, checked and timed in turn; failures are named."""
    module, inputs = build(title, quick=QUICK)
    exact = _exact(module, inputs)
    calls: dict[str, Callable[[], Any]] = {}
    failed: dict[str, str] = {}
    seconds: dict[str, float] = {}
    report = None
    makers: dict[str, Callable[[], Callable[[], Any]]] = {
        "eager": lambda: lambda: module(*inputs),
        "compile": lambda: _compiled(module, inputs, "default"),
        "compile-max": lambda: _compiled(module, inputs, "max-autotune-no-cudagraphs"),
        "onnxruntime": lambda: onnxruntime_call(module, inputs, THREADS, spinning=False),
        "ours": lambda: _ours(module, inputs),
    }
    errors = {}
    with torch.no_grad():
        for name, maker in makers.items():
            start = time.perf_counter()
            try:
                call = maker()
                errors[name] = max(error(_array(y), e) for y, e in zip(_flat(call()), exact, strict=True))
            except Exception as problem:
                failed[name] = f"{type(problem).__name__}: {problem}"[:300]
                continue
            finally:
                seconds[name] = round(time.perf_counter() - start, 1)
            calls[name] = call
            report = getattr(call, "report", report)
        times = in_turn(calls, seconds=8.0)
    return {
        "times": times, "errors": errors, "failed": failed, "ready_seconds": seconds,
        "report": short(report) if report else None,
    }  # fmt: skip


def _flat(result: Any) -> list[Any]:
    return list(result) if isinstance(result, list | tuple) else [result]


def _array(y: Any) -> Any:
    return y.detach().to(torch.float64).numpy() if isinstance(y, torch.Tensor) else np.asarray(y, np.float64)


def _exact(module: Any, inputs: tuple[Any, ...]) -> list[Any]:
    wide = copy.deepcopy(module).double()
    with torch.no_grad():
        result = wide(*[x.double() if x.is_floating_point() else x for x in inputs])
    return [_array(y) for y in _flat(result)]


def _compiled(module: Any, inputs: tuple[Any, ...], mode: str) -> Callable[[], Any]:
    compiled = torch.compile(module, mode=mode)
    compiled(*inputs)
    return lambda: compiled(*inputs)


class _ours:
    """Our program as a callable, with its report."""

    def __init__(self, module: Any, inputs: tuple[Any, ...]) -> None:
        self.program = tg.optimize(module, inputs, budget=4 * BUDGET if not QUICK else BUDGET)
        self.report = self.program.report
        self.values = [x.numpy() for x in inputs]

    def __call__(self) -> Any:
        return self.program.flat(*self.values)
