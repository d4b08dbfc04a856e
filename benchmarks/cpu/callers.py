"""Programs beside the caller's own modules and functions on the CPU: `python -m benchmarks.cpu.callers [NAME …]
[--budget S]`.

Modules and functions that nothing here was made for, at the options that a user has who sets none but the budget. For
each: the seconds that loading and the whole call of `optimize` take, µs of whole calls of the caller's function, of the
compiled plan (`allow_caller=False`) and of the returned program, medians of interleaved rounds (and ratios of the
fastest calls), and what the program runs. A row fails where the returned program is slower than the caller's function
by more than NOISE and CALL_US a call.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from copy import deepcopy
from itertools import cycle
from statistics import median
from typing import Any

import numpy as np

from ..common import row

NOISE = 0.05  # share by which a program may be slower than the caller's function: no difference
CALL_US = 2.5  # µs of a call that go into checking its arguments, whatever runs
ROUNDS, ROUND_US = 60, 300.0  # rounds of each, and µs of one: shorter calls are repeated
WHOLE_S = 6.0  # seconds of timing of one case, at most

Case = tuple[Callable[..., Any], tuple[Any, ...]]
CASES: dict[str, Callable[[], Case]] = {}


def case(make: Callable[[], Case]) -> Callable[[], Case]:
    """Decorator that adds a case to the table, under its function's name."""
    CASES[make.__name__] = make
    return make


def _torch() -> Any:
    import torch

    torch.manual_seed(0)
    return torch


# ---------------------------------------------------------------- recurrent networks
@case
def lstm_2x512() -> Case:
    """LSTM of two layers over 512 steps, one sequence."""
    torch = _torch()
    return torch.nn.LSTM(64, 128, num_layers=2).eval(), (torch.randn(512, 1, 64),)


@case
def gru_512() -> Case:
    """GRU of one layer over 512 steps."""
    torch = _torch()
    return torch.nn.GRU(32, 64, batch_first=True).eval(), (torch.randn(4, 512, 32),)


@case
def gru_6x512() -> Case:
    """GRU of six layers over 512 steps."""
    torch = _torch()
    return torch.nn.GRU(32, 64, num_layers=6).eval(), (torch.randn(512, 1, 32),)


@case
def rnn_relu_short() -> Case:
    """RNN with ReLU over eight steps."""
    torch = _torch()
    return torch.nn.RNN(16, 32, nonlinearity="relu").eval(), (torch.randn(8, 2, 16),)


@case
def tagger() -> Case:
    """Embedding, bidirectional LSTM, and a class for each word."""
    torch = _torch()
    nn = torch.nn

    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.out = nn.Embedding(5000, 64), nn.Linear(192, 17)
            self.layer = nn.LSTM(64, 96, bidirectional=True, batch_first=True)

        def forward(self, ids: Any) -> Any:
            return self.out(self.layer(self.words(ids))[0]).log_softmax(-1)

    return Tagger().eval(), (torch.randint(0, 5000, (8, 40)),)


# ---------------------------------------------------------------- others
@case
def conv_net() -> Case:
    """Four convolutions with batch norms, then pooling."""
    torch = _torch()
    nn = torch.nn
    parts: list[Any] = []
    for a, b in ((3, 16), (16, 32), (32, 32), (32, 64)):
        parts += [nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(), nn.MaxPool2d(2)]
    net = nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))
    return net.eval(), (torch.randn(2, 3, 64, 64),)


@case
def depthwise_net() -> Case:
    """Depthwise and pointwise convolutions."""
    torch = _torch()
    nn = torch.nn
    parts = [nn.Conv2d(24, 24, 5, padding=2, groups=24), nn.Hardswish(), nn.Conv2d(24, 48, 1), nn.GroupNorm(4, 48)]
    return nn.Sequential(*parts).eval(), (torch.randn(1, 24, 48, 48),)


@case
def mlp_small() -> Case:
    """MLP with little arithmetic, so that call overhead dominates."""
    torch = _torch()
    nn = torch.nn
    return nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4)).eval(), (torch.randn(1, 16),)


@case
def mlp_large() -> Case:
    """MLP of large products, for which library kernels are best."""
    torch = _torch()
    nn = torch.nn
    net = nn.Sequential(nn.Linear(1024, 2048), nn.GELU(), nn.Linear(2048, 1024), nn.LayerNorm(1024))
    return net.eval(), (torch.randn(64, 1024),)


@case
def encoder_layer() -> Case:
    """PyTorch's own transformer layer."""
    torch = _torch()
    layer = torch.nn.TransformerEncoderLayer(128, 4, 256, batch_first=True, dropout=0.0)
    return layer.eval(), (torch.randn(2, 48, 128),)


@case
def cross_attention() -> Case:
    """Multi-head attention without its weights."""
    torch = _torch()
    nn = torch.nn

    class Cross(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attend, self.norm = nn.MultiheadAttention(96, 6, batch_first=True), nn.LayerNorm(96)

        def forward(self, x: Any, y: Any) -> Any:
            return self.norm(x + self.attend(x, y, y, need_weights=False)[0])

    return Cross().eval(), (torch.randn(2, 30, 96), torch.randn(2, 50, 96))


@case
def numpy_tiny() -> Case:
    """NumPy function of three operations on 4 x 4 arrays."""
    x = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)
    return lambda x, y: np.tanh(x) * y + x, (x, x + 1)


@case
def numpy_standardize() -> Case:
    """NumPy function that scales rows to mean 0 and standard deviation 1."""
    x = np.random.default_rng(0).standard_normal((256, 512)).astype(np.float32)
    return (
        lambda x: (
            (x - x.mean(-1, keepdims=True))
            / np.sqrt(((x - x.mean(-1, keepdims=True)) ** 2).mean(-1, keepdims=True) + 1e-5)
        ),
        (x,),
    )


@case
def numpy_product() -> Case:
    """NumPy function of a matrix product and a softmax."""
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal((192, 192)).astype(np.float32) for _ in range(2))

    def scores(x: Any, w: Any) -> Any:
        e = np.exp(x @ w / 14.0)
        return e / e.sum(-1, keepdims=True)

    return scores, (x, w)


@case
def torch_tiny() -> Case:
    """Function of few operations on small Torch tensors."""
    torch = _torch()
    return lambda x, y: torch.sigmoid(x) * y - x.mean(), (torch.randn(8, 8), torch.randn(8, 8))


# ---------------------------------------------------------------- measuring
def sampled(
    calls: dict[str, Callable[[], Any]], rounds: int = ROUNDS, clock: Callable[[], float] = time.perf_counter
) -> dict[str, list[float]]:
    """Samples in µs of each call, in interleaved rounds; `clock` returns seconds."""
    for call in calls.values():
        call()
    began = time.perf_counter()
    for call in calls.values():
        call()
    once = (time.perf_counter() - began) * 1e6 / len(calls)
    times = max(1, int(ROUND_US / once))
    samples: dict[str, list[float]] = {name: [] for name in calls}
    start = time.perf_counter()
    for _ in range(rounds):
        for name, call in calls.items():
            began = clock()
            for _ in range(times):
                call()
            samples[name].append((clock() - began) * 1e6 / times)
        if time.perf_counter() - start > WHOLE_S and len(samples[name]) >= 7:
            break
    return samples


def measure(name: str, budget: float, clock: Callable[[], float] = time.perf_counter, **options: Any) -> dict[str, Any]:
    """The figures of one case: µs of calls by `clock`, other durations in seconds.

    Inputs alternate between several addresses. `options`: further options of `optimize`.
    """
    import tensor_graphs as tg
    from tensor_graphs.models.torch_export.export import load_module

    source, args = CASES[name]()
    torch = "torch" in type(args[0]).__module__
    loading = 0.0
    if torch:
        load_module(source, args)  # what is imported by the first is no part of loading
        began = time.perf_counter()
        load_module(source, args)
        loading = time.perf_counter() - began
    began = time.perf_counter()
    program = tg.optimize(source, args, budget=budget, **options)
    whole = time.perf_counter() - began
    plan = tg.optimize(source, args, budget=budget, allow_caller=False, **options)
    sets = {form: cycle([deepcopy(args) for _ in range(4)]) for form in ("caller", "plan", "program")}
    calls = {
        "caller": lambda: source(*next(sets["caller"])), "plan": lambda: plan(*next(sets["plan"])),
        "program": lambda: program(*next(sets["program"])),
    }  # fmt: skip
    with _torch().inference_mode() if torch else nullcontext():
        samples = sampled(calls, clock=clock)
    report, found = program.report, {n: median(s) for n, s in samples.items()}
    least = {n: min(s) for n, s in samples.items()}
    return {"name": name, **found, "least": least, "runs": report.runs, "compared": report.compared, "loading_s": loading, "optimize_s": whole,
            "before_us": report.latency_before_us, "after_us": report.latency_after_us}  # fmt: skip


def slower(found: dict[str, Any]) -> bool:
    """Whether the returned program is slower than the caller's function by more than noise and argument checks.

    Both the medians and the fastest calls must be slower, because other processes on the machine slow them unequally.
    """
    return all(of["program"] > of["caller"] * (1 + NOISE) + CALL_US for of in (found, found["least"]))


def line(found: dict[str, Any]) -> str:
    """The figures of a case as one row of the table."""
    caller, plan, program = (found[k] for k in ("caller", "plan", "program"))
    least = found["least"]
    return (
        f"| {found['name']} | {caller:.1f} | {plan:.1f} ({plan / caller:.2f}, {least['plan'] / least['caller']:.2f}) "
        f"| {program:.1f} ({program / caller:.2f}, {least['program'] / least['caller']:.2f}) "
        f"| {found['runs']} | {found['loading_s']:.2f} | {found['optimize_s']:.1f} |{' slower' if slower(found) else ''}"
    )


HEAD = """| case | caller, µs | plan, µs (ratio, of fastest) | program, µs (ratio, of fastest) | runs | loading, s | optimize, s |
|---|---|---|---|---|---|---|"""


def figures() -> list[dict[str, Any]]:
    """Result for `benchmarks.run`: how many of the cases are slower than the caller's function."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = [measure(name, 10.0) for name in CASES]
    worst = max(found, key=lambda f: f["program"] / f["caller"])
    late = [f["name"] for f in found if slower(f)]
    text = (
        f"{len(late)} of {len(found)} slower; largest ratio {worst['program'] / worst['caller']:.2f} ({worst['name']})"
    )
    return [row("programs beside their callers", "none slower", text, not late, cases=found)]


def main() -> None:
    """Print the table; exit with status 1 if a program is slower than the caller's function."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("names", nargs="*", help=f"of {', '.join(CASES)}; all of them if none is given")
    parser.add_argument("--budget", type=float, default=10.0, help="seconds of one optimize")
    parser.add_argument("--cpu-time", action="store_true",
                        help="CPU time of the calling thread, for OMP_NUM_THREADS=1 and OPENBLAS_NUM_THREADS=1 on a busy machine")  # fmt: skip
    parser.add_argument("--json", help="write the figures to a file")
    given = parser.parse_args()
    clock = time.thread_time if given.cpu_time else time.perf_counter
    if unknown := set(given.names) - set(CASES):
        parser.error(f"no case is called {sorted(unknown)}")
    warnings.simplefilter("ignore")
    print(HEAD, flush=True)
    found = []
    for name in given.names or CASES:
        found.append(measure(name, given.budget, clock))
        print(line(found[-1]), flush=True)
    if given.json:
        with open(given.json, "w", encoding="utf-8") as file:
            json.dump(found, file, indent=1)
    sys.exit(any(map(slower, found)))


if __name__ == "__main__":
    main()
