"""Whole calls of modules under `tg.compile` beside eager and `torch.compile`: `python -m
benchmarks.torch_compile.modules [--budget S] [--device D]`.

Each row: µs of one call as a caller sees it (wall clock, results synchronized), medians of alternating rounds: the bare
module, torch.compile's default mode, tg.compile, and tg.compile's backend without the choice between compiled and bare
calls (`torch.compile(backend="tensor_graphs")`); what runs after the decision; seconds of the first call with
`wait=True`. Modules are written for this table and tuned for nothing. The last row is a training step of a small GPT-2
(forward, backward, SGD).
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from torch import nn

import tensor_graphs as tg

ROUNDS, ROUND_S = 30, 0.02  # rounds of each form, and seconds of a round
WARM = 30  # calls before the rounds, during which tg.compile chooses between compiled and bare calls


TRAINED = "training step, GPT-2"


class Mixer(nn.Module):
    """MLP-Mixer block."""

    def __init__(self, tokens: int = 196, width: int = 512) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.over_tokens = nn.Sequential(nn.Linear(tokens, 256), nn.GELU(), nn.Linear(256, tokens))
        self.over_width = nn.Sequential(nn.Linear(width, 2048), nn.GELU(), nn.Linear(2048, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.over_tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.over_width(self.norm2(x))


class GatedMLP(nn.Module):
    """RMS norm and gated feed-forward block with residual."""

    def __init__(self, width: int = 4096, inner: int = 14336) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))
        self.up, self.gate = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6).to(x.dtype) * self.gain
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))


class ConvBlock(nn.Module):
    """Two convolutions with batch norm and a residual."""

    def __init__(self, channels: int = 64) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))
        self.norm1, self.norm2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.norm1(self.first(x)))
        return torch.relu(x + self.norm2(self.second(y)))


class Pointwise(nn.Module):
    """A chain of elementwise operations and a softmax."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.softmax(torch.tanh(x * y + 0.5 * x) * torch.sigmoid(y - x), -1) * x


def cases(gpu: bool, device: str | None = None) -> dict[str, tuple[nn.Module, tuple[torch.Tensor, ...]]]:
    """Name -> (module, inputs), at sizes for a GPU or a CPU, on that device unless `device` names another one."""
    half = torch.float16 if gpu else torch.float32
    small = {} if gpu else {"width": 256, "inner": 1024}
    layer = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True, norm_first=True)
    found: dict[str, tuple[nn.Module, tuple[torch.Tensor, ...]]] = {
        "mixer_block": (Mixer(), (torch.randn(8 if gpu else 1, 196, 512),)),
        "gated_mlp_4_tokens": (GatedMLP(**small), (torch.randn(4, small.get("width", 4096)),)),
        "encoder_layer": (layer, (torch.randn(8 if gpu else 1, 128, 512),)),
        "conv_block": (ConvBlock(), (torch.randn(8 if gpu else 1, 64, 56, 56),)),
        "pointwise": (Pointwise(), (torch.randn(4096, 1024), torch.randn(4096, 1024))),
    }
    device = device or ("cuda" if gpu else "cpu")
    return {n: (m.eval().to(device, half), tuple(x.to(device, half) for x in xs)) for n, (m, xs) in found.items()}


def call_us(call: Callable[[], Any], gpu: bool, times: int) -> float:
    """µs per call, over `times` calls; on a GPU until the results are there."""
    begin = time.perf_counter()
    for _ in range(times):
        call()
    if gpu:
        torch.cuda.synchronize()
    return 1e6 * (time.perf_counter() - begin) / times


def measured(
    name: str, module: nn.Module, inputs: tuple[torch.Tensor, ...], budget: float, gpu: bool
) -> dict[str, Any]:
    """One row of the table: times of a module's calls in each way."""
    forms: dict[str, Callable[[], Any]] = {"bare module": lambda: module(*inputs)}
    compiled = torch.compile(module)
    forms["torch.compile"] = lambda: compiled(*inputs)
    begin = time.perf_counter()
    ours = tg.compile(module, budget=budget, wait=True)
    ours(*inputs)
    first_s = time.perf_counter() - begin
    forms["tg.compile"] = lambda: ours(*inputs)
    behind_guards = torch.compile(module, backend=tg.torch_compile.backend, options={"budget": budget, "wait": True})
    forms["backend"] = lambda: behind_guards(*inputs)
    report = tg.torch_compile.last_report()
    for form in list(forms):
        try:
            for _ in range(WARM):
                forms[form]()
        except Exception as error:  # a peer that cannot compile has no figure
            warnings.warn(f"{name}: {form}: {type(error).__name__}: {error}", stacklevel=1)
            del forms[form]
    times = {f: max(1, int(1e6 * ROUND_S / call_us(c, gpu, 3))) for f, c in forms.items()}
    samples: dict[str, list[float]] = {f: [] for f in forms}
    for _ in range(ROUNDS):
        for form, call in forms.items():
            samples[form].append(call_us(call, gpu, times[form]))
    us = {f: round(median(s), 1) for f, s in samples.items()}
    return {
        "case": name,
        **us,
        "runs": report.runs if report else "eager",
        "why": f"{report.why}; calls {report.calls}" if report else "",
        "first_s": round(first_s, 1),
    }


def main() -> None:
    """Measure all modules and the training step; print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="cases; all if none is given")
    parser.add_argument("--budget", type=float, default=20.0)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", help="file for the rows")
    given = parser.parse_args()
    gpu, rows = given.device == "cuda", list[dict[str, Any]]()
    torch.manual_seed(0)
    columns = ("bare module", "torch.compile", "tg.compile", "backend")
    print(f"| case | {', '.join(columns).replace(', ', ', µs | ')}, µs | runs | first call, s |\n|{'---|' * 7}")
    for name, (module, inputs) in cases(gpu).items():
        if given.names and name not in given.names:
            continue
        try:
            with torch.no_grad():
                row = measured(name, module, inputs, given.budget, gpu)
        except Exception as error:  # the other cases still have figures
            print(f"| {name} | {type(error).__name__}: {str(error)[:300]} |", flush=True)
            continue
        rows.append(row)
        cells = [row.get(k, "") for k in ("case", *columns, "runs", "first_s")]
        print(f"| {' | '.join(map(str, cells))} |", flush=True)
        print(f"  {row['why']}", flush=True)
    if not given.names or TRAINED in given.names:
        row = {"case": TRAINED, **training_step(given.budget, gpu)}
        rows.append(row)
        print(
            f"| {TRAINED} | {row['bare module']} | {row['torch.compile']} | {row['tg.compile']} |  | {row['runs']} |  |\n  {row['why']}"
        )
    if given.json:
        with open(given.json, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)


def training_step(budget: float, gpu: bool) -> dict[str, Any]:
    """µs of a training step of a GPT-2 with 4 layers, batch 4, 128 tokens."""
    from . import training

    scale, device = ("medium", "cuda") if gpu else ("small", "cpu")
    row = training.timed("gpt2", scale=scale, device=device, dtype=torch.float32, row={}, budget=budget)
    return {
        "bare module": row["eager_us"],
        "torch.compile": row["peer_us"],
        "tg.compile": row["us"],
        "runs": row["decided"],
        "why": row["why"],
    }


if __name__ == "__main__":
    main()
