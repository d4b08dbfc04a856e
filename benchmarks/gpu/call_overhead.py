"""What a call costs beyond its kernels on a GPU: `python -m benchmarks.gpu.call_overhead [--budget S] [--only NAME ...]
[--out FILE]`.

For each module: µs a call (wall clock, calls issued back to back, inputs at new addresses each call), medians of rounds
in turn, for eager PyTorch, torch.compile (the modes of `--rivals`) and our program in each way to launch, with its
direct function (`backends/program/launch/direct_calls.py`) and, as `flat emitted`, without; and the kernels' own time,
from a CUDA graph of many calls. `driver`: µs of the host in the driver's launches of a call alone. `latency`: one call
and the wait for its results. `host`: until a call returns, on an idle device.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from ..torch_compile.modules import GatedMLP, Mixer

MODES = ("flat", "graph", "copying")
RIVALS = ("default", "reduce-overhead")  # modes of torch.compile
SETS, ROUNDS, ROUND_S, KEPT = 8, 15, 0.01, 4
Build = Callable[[], tuple[nn.Module, list[torch.Tensor]]]
CASES: dict[str, Build] = {}


def case(make: Build) -> Build:
    """Decorator that adds a case to the table, under its function's name."""
    CASES[make.__name__] = make
    return make


def _randn(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float32).to(dtype)


class Of(nn.Module):
    """Module that applies a function to its inputs; it has no weights."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *given: torch.Tensor) -> Any:
        return self.function(*given)


@case
def product_4096() -> tuple[nn.Module, list[torch.Tensor]]:
    """A product of two inputs."""
    return Of(lambda x, y: x @ y), [_randn(4096, 4096), _randn(4096, 4096)]


def _latent(q: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
    scores = (q @ cache.transpose(-1, -2)).float() * 0.07
    return torch.softmax(scores, -1).to(q.dtype) @ cache[..., :512]


@case
def latent_attention() -> tuple[nn.Module, list[torch.Tensor]]:
    """One query of 16 heads over a cache of 7168 latent rows (8 MB), which is an input."""
    return Of(_latent), [_randn(1, 16, 576), _randn(1, 7168, 576)]


class NormLinear(nn.Module):
    """RMS norm and a linear layer over few rows."""

    def __init__(self, width: int = 1024, inner: int = 1024) -> None:
        super().__init__()
        self.gain, self.down = nn.Parameter(torch.ones(width)), nn.Linear(width, inner, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.rms_norm(x, (x.shape[-1],), self.gain, 1e-6))


@case
def norm_linear() -> tuple[nn.Module, list[torch.Tensor]]:
    """Norm and linear layer for one token."""
    return NormLinear().bfloat16(), [_randn(1, 1024)]


@case
def softmax_rows() -> tuple[nn.Module, list[torch.Tensor]]:
    """Softmax along rows: one kernel over 8 MB."""
    return Of(lambda x: torch.softmax(x * 0.5, -1)), [_randn(2048, 2048)]


@case
def mixer() -> tuple[nn.Module, list[torch.Tensor]]:
    """MLP-Mixer block, batch 8, fp16."""
    return Mixer().half(), [_randn(8, 196, 512, dtype=torch.float16)]


class Gated(GatedMLP):
    """Gated feed-forward block of an 8B model, with PyTorch's RMS norm."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.rms_norm(x, (x.shape[-1],), self.gain, 1e-6)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


@case
def feed_forward() -> tuple[nn.Module, list[torch.Tensor]]:
    """Gated feed-forward block for four tokens."""
    return Gated().bfloat16(), [_randn(4, 4096)]


def kernels_us(calls: dict[str, Callable[[int], Any]]) -> dict[str, float]:
    """Time of the kernels alone, in µs per call: CUDA graphs of twenty calls, replayed in turn because clocks drift."""
    recorded = {}
    for name, call in calls.items():
        call(0)
        torch.cuda.synchronize()
        recorded[name] = torch.cuda.CUDAGraph()
        with torch.cuda.graph(recorded[name]):
            for i in range(20):
                call(i)
    times: dict[str, list[float]] = {n: [] for n in calls}
    for _ in range(12):
        for name, graph in recorded.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            times[name].append(1000 * start.elapsed_time(end) / 20)
    return {name: median(found[2:]) for name, found in times.items()}


def in_turn(calls: dict[str, Callable[[int], Any]]) -> dict[str, dict[str, float]]:
    """Medians in µs, in alternating rounds: a call in a row of calls, a call until its results are there, a call until
    it returns.
    """
    samples: dict[str, list[float]] = {n: [] for n in calls}
    single: dict[str, list[float]] = {n: [] for n in calls}
    returned: dict[str, list[float]] = {n: [] for n in calls}
    counts: dict[str, int] = {}
    for turn in range(ROUNDS + 1):
        for name, call in calls.items():
            kept: list[Any] = [None] * KEPT
            count = counts.get(name, 10)
            torch.cuda.synchronize()
            start = time.perf_counter()
            for i in range(count):
                kept[i % KEPT] = call(i)
            torch.cuda.synchronize()
            took = (time.perf_counter() - start) / count
            start = time.perf_counter()
            kept[0] = call(turn)
            issued = time.perf_counter() - start
            torch.cuda.synchronize()
            alone = time.perf_counter() - start
            if turn:
                samples[name].append(1e6 * took)
                single[name].append(1e6 * alone)
                returned[name].append(1e6 * issued)
            else:
                counts[name] = max(5, min(1000, int(ROUND_S / took)))
    return {
        n: {"call_us": median(samples[n]), "latency_us": median(single[n]), "host_us": median(returned[n])}
        for n in calls
    }


def measured(name: str, budget: float, rivals: Sequence[str] = RIVALS) -> dict[str, Any]:
    """Times of one case: eager, torch.compile in the modes `rivals`, and our program in each way to launch."""
    import tensor_graphs as tg
    from tensor_graphs.backends.program.program import Program

    class _Emitted(Program):  # type: ignore[misc]
        """A program whose calls are all made by its emitted code."""

        _tries = 0

    torch.manual_seed(0)
    torch._dynamo.reset()
    module, given = CASES[name]()
    module = module.eval().requires_grad_(False)
    start = time.monotonic()
    program = tg.optimize(module, tuple(given), backend="gpu", budget=budget)
    record: dict[str, Any] = {"name": name, "optimize_s": time.monotonic() - start, "kernels": program.manifest.kernels,
                              "steps": [s.template.name for s in program.plan.steps if not s.is_view] if program.plan else [], "failed": {}}  # fmt: skip
    module = module.cuda()
    sets = [[x.cuda() for x in given] for _ in range(SETS)]
    calls: dict[str, Callable[[int], Any]] = {"eager": lambda i: module(*sets[i % SETS])}
    with torch.no_grad():
        want = [x.clone() for x in (module(*sets[0]),)]
        for mode in rivals:
            compiled = torch.compile(module, mode=mode, fullgraph=True)
            calls[mode] = lambda i, f=compiled: f(*sets[i % SETS])
        for label, kind, way in (
            *((f"{w} emitted", _Emitted, w) for w in MODES[:2]), *((w, Program, w) for w in MODES), ("chosen", Program, ""),
        ):  # fmt: skip
            own = kind.from_saved(
                replace(program.manifest, launch_mode=way), program.source, program._weights, None, None
            )
            calls[label] = lambda i, f=own: f.flat(*sets[i % SETS])
            record.setdefault("own", {})[label] = own
        for label, call in list(calls.items()):
            try:
                for i in range(3):
                    found = call(i)
                torch.cuda.synchronize()
                first = found[0] if isinstance(found, list | tuple) else found
                distance = float((first.float() - want[0].float()).norm() / want[0].float().norm())
                assert distance < 0.03, distance
            except Exception as error:
                traceback.print_exc()
                record["failed"][label] = f"{type(error).__name__}: {error}"[:300]
                del calls[label]
        record["kernels_us"] = kernels_us({n: calls[n] for n in ("eager", "flat") if n in calls})
        record["forms"] = in_turn(calls)
    direct = {n: p._direct is not None for n, p in record["own"].items()}
    record["direct"] = [n for n, there in direct.items() if there]
    runs = {n: p._run for n, p in record.pop("own").items()}
    record["driver_us"] = {n: launches_us(runs[n]) for n in MODES[:2] if n in runs}
    record["launch_modes"] = {n: getattr(r, "launch_mode", "") for n, r in runs.items()}
    record["timed_us"] = {n: round(1e6 * s, 1) for n, s in getattr(runs["chosen"], "times", {}).items()}
    return record


def launches_us(run: Any, count: int = 200) -> float:
    """µs of the driver's functions that launch the kernels of a call, or its CUDA graph, on addresses that stay; 0
    without."""
    run.stream_object.synchronize()
    if run.launch_mode == "graph" and run.executable is not None:
        calls = [(run.kernels.driver.library.cuGraphLaunch, (run.executable, ctypes.c_void_p(run.stream)))]
    else:
        calls = [(one.call, one.arguments) for one in run.kernels.table] if run.launch_mode == "flat" else []
    begun = time.perf_counter()
    for _ in range(count if calls else 0):
        for call, given in calls:
            call(*given)
    took = time.perf_counter() - begun
    run.stream_object.synchronize()
    return 1e6 * took / count


def shown(record: dict[str, Any]) -> str:
    """A record as lines of text."""
    kernels = ", ".join(f"{n} {us:.1f}" for n, us in record["kernels_us"].items())
    head = f"{record['name']}: {record['kernels']} kernels {record['steps'][:6]}; kernels alone: {kernels} µs; chosen {record['launch_modes'].get('chosen')}; direct {record['direct']}; driver alone: {', '.join(f'{n} {us:.1f}' for n, us in record['driver_us'].items())} µs"
    forms = [
        f"  {n:16} {f['call_us']:8.1f} µs a call, {f['latency_us']:8.1f} with the wait, {f['host_us']:6.1f} until it returns"
        for n, f in record["forms"].items()
    ]
    return "\n".join([head, *forms, *(f"  {n}: {what}" for n, what in record["failed"].items())])


def main() -> None:
    """Measure the cases and print them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget", type=float, default=8.0)
    parser.add_argument("--only", nargs="*", default=list(CASES))
    parser.add_argument("--rivals", nargs="*", default=list(RIVALS), help="modes of torch.compile")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    found = []
    for name in options.only:
        try:
            found.append(measured(name, options.budget, options.rivals))
            print(shown(found[-1]), flush=True)
        except Exception:
            traceback.print_exc()
        if options.out:
            options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    sys.exit(not found)


if __name__ == "__main__":
    main()
