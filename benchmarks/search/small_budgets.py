"""How good plans of small budgets are: `python -m benchmarks.search.small_budgets [--only NAME ...] [--budgets 5 20 60]
[--seconds 540] [--to FOLDER]`.

Each module is optimized in processes of its own, with empty caches: at each budget with an empty cost store (`cold`),
and with starter rows that were measured for the other modules only (`starter`), so that they are no look-up of the
answer. Steps:

    cold     every budget, empty store
    fill     a long search a module (`--reference` seconds if it is compared, `--fill` otherwise), several at once (one
             uses the device), each in a store of its own; their rows, exported, are the starter rows
    starter  every budget, starter rows of the other modules
    shipped  every budget, the package's starter rows, which may contain kernels of the modules
    time     all programs of a module in turn, with cold caches, in one process

Printed per module is µs of each program over the fastest of all (fill included). Results are written at once to
FOLDER/results.json; `--steps` chooses steps, `--seconds` ends what is begun. `--device cpu` takes smaller sizes.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

from ..common import WORK

STEPS = ("cold", "fill", "starter", "shipped", "time")
JUDGED = ("mixer_block", "gated_mlp_4_tokens", "encoder_layer", "conv_block", "pointwise", "softmax")
"""Modules whose programs are compared, written in benchmarks/torch_compile/modules.py (`--only` also takes those of
benchmarks/models/small_budget_modules.py); the variants only fill."""
FILLING = ("norm_linear_fp16_b4", "norm_qkv_bias_b64", "gated_mlp_896_b32", "bert_mlp_fp16_t1000", "lstm_cell_fp16_b32",
           "gqa_einsum_decode_fp16_b4", "multihead_fp16_b4", "sdpa_causal_fp16_t1000", "convnext_block_fp16_b8", "inverted_residual_b16",
           "lm_head_log_softmax_fp16_b16", "cross_entropy_32000", "gru_cell_b16", "modulated_norm_fp16")  # fmt: skip
MARGIN_S = 20.0  # seconds beyond its budget that a process may take for imports and saving
START_S = 7.0  # expected seconds of these
TIMING_S = 35.0  # seconds that the last step needs
Results = dict[str, Any]


# ---------------------------------------------------------------- in a process of its own
def made(name: str, device: str) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """A module by name, example inputs (on the host), and options of its search."""
    import torch

    torch.manual_seed(0)
    if name in JUDGED:
        from ..torch_compile.modules import cases

        class Softmax(torch.nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return torch.softmax(x, -1)

        half = torch.float16 if device == "cuda" else torch.float32
        rows = 8192 if device == "cuda" else 512
        table = {**cases(device == "cuda", "cpu"), "softmax": (Softmax(), (torch.randn(rows, 4096),))}
        module, inputs = table[name]
        return module.to(half), tuple(x.to(half) for x in inputs), {}
    from ..models import further, small_budget_modules  # noqa: F401  (registers its variants)

    if name in small_budget_modules.NAMES:
        half = torch.float16 if device == "cuda" else torch.float32
        module, inputs = small_budget_modules.build(name, large=device == "cuda")
        return module.to(half), tuple(x.to(half) if x.is_floating_point() else x for x in inputs), {}
    from ..models.workload_variants import TINY, VARIANTS

    work = (VARIANTS if device == "cuda" else TINY)[name]
    inputs, weights = work.arguments("cpu")
    return work.module(weights), tuple(inputs), {} if work.tolerance is None else {"tolerance": work.tolerance}


def search(name: str, device: str, budget: float, store: Path, to: Path) -> None:
    """Optimize a module in this process; save its program into the folder `to` and the report into `to`.json."""
    import torch

    import tensor_graphs as tg

    if device == "cuda":
        from ..gpu.case import share_the_gpu

        share_the_gpu()
        torch.zeros(1, device="cuda")  # a caller's process has used the device
    module, inputs, options = made(name, device)
    began = time.monotonic()
    backend = "gpu" if device == "cuda" else "auto"
    program = tg.optimize(module, inputs, backend=backend, budget=budget, costdb=store, allow_caller=False, **options)
    took = time.monotonic() - began
    program.save(to)
    to.with_suffix(".json").write_text(json.dumps({"took_s": took, **program.report.to_json()}, default=str))


def timed(name: str, device: str, folders: Sequence[Path], seconds: float) -> dict[str, list[float]]:
    """Samples in µs of the saved programs, called in turn for `seconds`."""
    import torch

    from tensor_graphs.backends.program.saved_program import load_program
    from tensor_graphs.pipeline.execution import timing

    _, inputs, _ = made(name, device)
    near = tuple(x.to(device) for x in inputs)
    calls: dict[str, Callable[[], Any]] = {}
    for folder in folders:
        try:
            program = load_program(folder, device="cuda" if device == "cuda" else None).bind()
            program(*near)
            calls[folder.name] = lambda program=program: program(*near)  # type: ignore[misc]
        except Exception as error:  # the other programs are timed nevertheless
            print(f"{folder.name}: {type(error).__name__}: {error}", file=sys.stderr)
    with torch.no_grad():
        clock = timing.cold_clock_of(device)
        return timing.sampled(calls, seconds=seconds, least=15, most=400, clock=clock)


# ---------------------------------------------------------------- the processes
class Run:
    """One run of the benchmark: its folder, its deadline, and the results so far."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.to, self.until = options, options.to, time.monotonic() + options.seconds
        self.to.mkdir(parents=True, exist_ok=True)
        self.file, self.lock = self.to / "results.json", threading.Lock()
        self.found: Results = json.loads(self.file.read_text()) if self.file.exists() else {}

    @property
    def left(self) -> float:
        """Seconds until the deadline."""
        return self.until - time.monotonic()

    def keep(self, name: str, part: str, value: Any) -> None:
        """Write the result `value` of a part of a module."""
        with self.lock:
            self.found.setdefault(name, {})[part] = value
            self.file.write_text(json.dumps(self.found, indent=1) + "\n")

    def child(self, arguments: Sequence[str], seconds: float, environment: Mapping[str, str]) -> str:
        """Run this module in a process with an empty home; returns why it failed, "" otherwise."""
        with tempfile.TemporaryDirectory(prefix="small-budget-") as home:
            known = {**os.environ, "TENSOR_GRAPHS_HOME": home, "TRITON_CACHE_DIR": f"{home}/triton", **environment}
            command = [
                sys.executable,
                "-m",
                "benchmarks.search.small_budgets",
                "--device",
                self.options.device,
                *arguments,
            ]
            try:
                done = subprocess.run(command, env=known, timeout=seconds, capture_output=True, text=True, check=False)
            except subprocess.TimeoutExpired:
                return f"killed after {seconds:.0f} s"
        sys.stderr.write(done.stderr[-2000:])
        return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["failed"])[-1][:300]

    def searched(self, name: str, label: str, budget: float, starter: Path | None, store: Path | None = None) -> None:
        """Run one search of a module in a process, unless the deadline has passed."""
        if self.left < budget + START_S + (TIMING_S if "time" in self.options.steps else 0.0):
            return
        folder = self.to / "programs" / name / label
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as empty:
            arguments = ["--child", name, str(budget), str(store or empty), str(folder)]
            environment = {"TENSOR_GRAPHS_STARTER": str(starter or "none")}
            if store is not None:
                environment["TENSOR_GRAPHS_GPU_LOCK"] = str(self.to / "gpu.lock")
            margin = MARGIN_S * (1 if self.options.device == "cuda" else 4)  # hosts differ, and loading models counts
            failed = self.child(arguments, min(1.5 * budget + margin, self.left), environment)
        report = folder.with_suffix(".json")
        known = json.loads(report.read_text()) if report.exists() else {}
        kept = ("took_s", "cost_us", "kernels_after", "priced", "measured_now", "seconds", "measuring", "search_stopped", "omitted",
                "warnings", "curve", "finalists")  # fmt: skip
        steps = [{k: s[k] for k in ("name", "us", "source", "schedule") if k in s} for s in known.get("steps", ())]
        timeline = known.get("timeline", {}) if store is None else {}
        found = {k: known[k] for k in kept if k in known} | {"steps": steps, "timeline": timeline}
        self.keep(name, label, {"failed": failed} if failed else found)
        print(f"{name} {label}: {failed or round(known.get('cost_us', math.nan), 1)}", flush=True)

    # ------------------------------------------------------------ steps
    def cold(self) -> None:
        """Search at every budget with an empty store."""
        for name in self.options.only:
            for budget in self.options.budgets:
                self.searched(name, f"cold-{budget:g}", budget, None)

    def fill(self) -> None:
        """Run the long searches, several side by side; their measurements become starter rows."""
        each = sum(self.options.budgets) + START_S
        reserve = len(self.options.only) * each + TIMING_S if self.options.reserve else 0.0
        names = [n for n in (*self.options.only, *self.options.filling) if "fill" not in self.found.get(n, {})]

        def one(name: str) -> None:
            budget = self.options.reference if name in self.options.only else self.options.fill
            if self.left - reserve >= budget + START_S:
                self.searched(name, "fill", budget, None, self.to / "stores" / name)

        with ThreadPoolExecutor(self.options.together) as threads:
            list(threads.map(one, names))

    def starter(self) -> None:
        """Search at every budget with the starter rows of the other modules."""
        for name in self.options.only:
            for budget in self.options.budgets:
                if self.left > budget + START_S:
                    if rows := without(self.to, name):
                        self.searched(name, f"starter-{budget:g}", budget, rows)

    def shipped(self) -> None:
        """Search at every budget with the package's own starter rows."""
        from tensor_graphs.costdb.store.starter import FOLDER

        for name in self.options.only:
            for budget in self.options.budgets:
                self.searched(name, f"shipped-{budget:g}", budget, FOLDER)

    def time(self) -> None:
        """Time all programs of each module in one process."""
        target, folders = self.to / "us.json", [self.to / "programs" / name for name in self.options.only]
        target.unlink(missing_ok=True)
        failed = self.child(["--time", str(target), *(str(f) for f in folders if f.is_dir())], self.left, {})
        print(failed or "timed", flush=True)
        for name, us in json.loads(target.read_text() if target.exists() else "{}").items():
            self.keep(name, "us", us)


def without(to: Path, name: str) -> Path | None:
    """A folder with the starter rows of all modules but one; None if there are none."""
    from tensor_graphs.costdb.store.starter import export_starter
    from tensor_graphs.costdb.store.store import Store
    from tensor_graphs.errors import CostStoreError

    folder = to / "starters" / name
    if not folder.is_dir():
        with tempfile.TemporaryDirectory() as root:
            for other in sorted((to / "stores").glob("*")):
                if other.name != name:
                    Store(root).merge(other)
            try:
                export_starter(Path(root), folder)
            except CostStoreError as error:
                print(error, file=sys.stderr)
                return None
    return folder


def table(found: Results) -> str:
    """The table: µs of each module's programs relative to its fastest one, and geometric means."""
    ratios = {
        name: {label: us / min(parts["us"].values()) for label, us in parts["us"].items()}
        for name, parts in found.items() if parts.get("us")
    }  # fmt: skip
    labels = sorted({label for r in ratios.values() for label in r}, key=lambda x: (x.split("-")[0], len(x), x))
    lines = [f"| module | fastest µs | {' | '.join(labels)} |", "|---" * (2 + len(labels)) + "|"]
    for name, r in ratios.items():
        cells = [f"{r[x]:.2f}" if x in r else "" for x in labels]
        lines.append(f"| {name} | {min(found[name]['us'].values()):.1f} | {' | '.join(cells)} |")
    means = [[r[x] for r in ratios.values() if x in r] for x in labels]
    cells = [f"{math.exp(sum(map(math.log, m)) / len(m)):.2f}" for m in means]
    return "\n".join([*lines, f"| geometric mean | | {' | '.join(cells)} |"])


def main() -> None:
    """Parse the command line, run the steps, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=list(JUDGED), metavar="NAME", help="modules that are compared")
    parser.add_argument("--filling", nargs="*", default=list(FILLING), metavar="NAME", help="modules that only fill")
    parser.add_argument("--budgets", type=float, nargs="+", default=[5.0, 20.0, 60.0])
    parser.add_argument("--fill", type=float, default=60.0, help="budget of searches that only fill")
    parser.add_argument("--reference", type=float, default=60.0, help="budget of those that fill and are compared")
    parser.add_argument("--reserve", action="store_true", help="end filling early enough for the step `starter`")
    parser.add_argument("--together", type=int, default=3, help="searches that fill side by side")
    parser.add_argument("--steps", nargs="+", choices=STEPS, default=list(STEPS))
    parser.add_argument("--seconds", type=float, default=540.0, help="of the whole run")
    parser.add_argument("--to", type=Path, default=WORK / "small_budget")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    parser.add_argument("--time", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        name, budget, store, to = options.child
        search(name, options.device, float(budget), Path(store), Path(to))
    elif options.time:
        target, *folders = map(Path, options.time)
        found: dict[str, dict[str, float]] = {}
        for folder in folders:
            programs = sorted(p for p in folder.glob("*") if p.is_dir())
            samples = timed(folder.name, options.device, programs, 0.5 * len(programs))
            found[folder.name] = {label: median(us) for label, us in samples.items() if us}
            target.write_text(json.dumps(found))
    else:
        run = Run(options)
        for step in options.steps:
            getattr(run, step)()
        print(table(run.found))


if __name__ == "__main__":
    main()
