"""Wall-clock and CPU seconds of first calls of `tg.optimize` with a small budget on a CPU: `python -m
benchmarks.cpu.first_budget [NAMES] [--budget 5]`.

Each module is optimized in a process of its own with an empty home, as a user's first call: loading the model and
starting worker processes count; a process before them has compiled all bytecode, as an installation does. Printed are
the seconds of `import torch` and of the import of this package, which the budget does not count, of the call by wall
clock, CPU seconds of the call in this process and in its workers, the stages of the report, and the load of the
machine: on a busy machine the wall clock says little. Results: standard output, and out/bench/first_budget.json
(BENCH_WORK).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from ..common import WORK, cpu_seconds, with_bytecode

NAMES = ("mlp", "transformer_block", "resnet18", "lstm", "gpt2")
SECONDS = 300.0  # limit of a process


def made(name: str) -> tuple[Any, tuple[Any, ...]]:
    """A module in inference mode and example inputs."""
    import torch
    from torch import nn

    from ..models import peer_models

    class Block(nn.Module):
        """Two 3 x 3 convolutions and a residual, as in ResNet-18."""

        def __init__(self, before: int, after: int, stride: int) -> None:
            super().__init__()
            conv = lambda a, b, s: nn.Sequential(nn.Conv2d(a, b, 3, s, 1, bias=False), nn.BatchNorm2d(b))
            self.first, self.second = conv(before, after, stride), conv(after, after, 1)
            short = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))
            self.short = short if stride > 1 else nn.Identity()

        def forward(self, x: Any) -> Any:
            return torch.relu(self.second(torch.relu(self.first(x))) + self.short(x))

    def resnet18() -> nn.Module:
        widths = (
            (64, 64, 1),
            (64, 64, 1),
            (64, 128, 2),
            (128, 128, 1),
            (128, 256, 2),
            (256, 256, 1),
            (256, 512, 2),
            (512, 512, 1),
        )
        stem = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
        return nn.Sequential(
            *stem, *(Block(*w) for w in widths), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000)
        )

    torch.manual_seed(0)
    r = torch.randn
    makers: dict[str, Callable[[], Any]] = {
        "mlp": lambda: (nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)), (r(32, 512),)),
        "transformer_block": lambda: (nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True), (r(1, 64, 256),)),
        "resnet18": lambda: (resnet18(), (r(1, 3, 224, 224),)),
        "lstm": lambda: (nn.LSTM(128, 128, batch_first=True), (r(1, 16, 128),)),
        "gpt2": lambda: (peer_models.Gpt2(12, vocab=50257), (torch.randint(1000, (1, 64)),)),
    }  # fmt: skip
    module, inputs = makers[name]()
    return module.eval().requires_grad_(False), inputs


def call(name: str, budget: float) -> dict[str, Any]:
    """Seconds of a first call in this process."""
    begun = time.perf_counter()
    import torch

    import tensor_graphs as tg

    optimize = tg.optimize  # imports the pipeline
    imported, used = time.perf_counter() - begun, sum(cpu_seconds())
    module, inputs = made(name)
    own, workers = cpu_seconds()
    started = time.perf_counter()
    with torch.no_grad():
        program = optimize(module, inputs, budget=budget)
    wall, after = time.perf_counter() - started, cpu_seconds()
    report = program.report
    return {
        "imported_s": imported, "imported_cpu_s": used, "wall_s": wall, "own_cpu_s": after[0] - own,
        "workers_cpu_s": after[1] - workers, "seconds": dict(report.seconds), "omitted": list(report.omitted),
        "stopped": report.search_stopped, "runs": report.runs, "timeline": report.to_json().get("timeline"),
    }  # fmt: skip


def main() -> None:
    """Parse the command line; one process a module; print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(NAMES))
    parser.add_argument("--budget", type=float, default=5.0)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(call(options.names[0], options.budget), default=str))
        return
    found: dict[str, Any] = {}
    warm = False
    print(
        "| module | imports | wall clock | CPU, process | CPU, workers | stages | load |\n|---|---|---|---|---|---|---|"
    )
    for name in (options.names[0], *options.names):  # the first process compiles bytecode and does not count
        with tempfile.TemporaryDirectory(prefix="first-budget-") as home:
            command = [
                sys.executable,
                "-m",
                "benchmarks.cpu.first_budget",
                name,
                "--budget",
                str(options.budget),
                "--child",
            ]
            known = with_bytecode(TENSOR_GRAPHS_HOME=home)
            done = subprocess.run(
                command, env=known, timeout=SECONDS, capture_output=True, text=True, check=False
            )  # fmt: skip
        if done.returncode:
            print(f"| {name} | failed: {(done.stderr.strip().splitlines() or ['?'])[-1][:200]} |", flush=True)
            continue
        if not warm:
            warm = True
            continue
        one = found[name] = {**json.loads(done.stdout.splitlines()[-1]), "load": os.getloadavg()[0]}
        stages = ", ".join(f"{k} {v:.1f}" for k, v in one["seconds"].items() if v >= 0.05)
        print(
            f"| {name} | {one['imported_s']:.1f} | {one['wall_s']:.1f} | {one['own_cpu_s']:.1f} | {one['workers_cpu_s']:.1f} | {stages} | {one['load']:.0f} |",
            flush=True,
        )
    WORK.mkdir(parents=True, exist_ok=True)
    (WORK / "first_budget.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
