"""Whole models on a GPU, optimized as a user would: `python -m benchmarks.gpu.whole_models [--only NAME ...] [--budget
S] [--render]`.

The models of `whole_models.py` with random weights: eager PyTorch, torch.compile (default and, if time is left,
max-autotune) and our program, made from the module or from an ONNX file. Results are checked against float64, and all
are replayed in turn as in `gpu.py`. Ours is optimized with half the budget and with all of it, each from an empty
store, and once more with those measurements. Each result is written at once to results/raw/gpu_models.json;
results/gpu_models.md is made from it. BENCH_MODES=default omits max-autotune, BENCH_HALVES=0 the search with half the
budget.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from benchmarks.cpu.memory import Watch
from benchmarks.gpu.case import Case, Record, Run, described
from benchmarks.gpu.suite import Suite
from benchmarks.gpu.table import how
from benchmarks.gpu.variants import ratio, shortened
from benchmarks.models.whole_models import MODELS, TINY

HALF, PEERS = "ours, half", ("eager", "default", "max-autotune")
MODES = [m for m in os.environ.get("BENCH_MODES", "default,max-autotune").split(",") if m]
HALVES = os.environ.get("BENCH_HALVES", "1") == "1"


class Whole(Case):
    """A whole model measured in this process."""

    def add(self, name: str, found: Record, calls: list[Run]) -> None:
        """Same as `Case.add`; also records the peak device memory of a call, beside weights and inputs."""
        if self.device.name == "cuda":
            cuda = self.torch.cuda
            calls[0]()
            cuda.synchronize()
            cuda.reset_peak_memory_stats()
            before = cuda.memory_allocated()
            calls[0]()
            cuda.synchronize()
            found["memory"] = cuda.max_memory_allocated() - before + found.get("workspace", 0)
        super().add(name, found, calls)

    def source(self) -> tuple[Any, ...]:
        """Arguments of `optimize`: the module with example inputs, or an ONNX file."""
        module, inputs = self.work.module([w.cpu() for w in self.weights]), tuple(x.cpu() for x in self.inputs)
        if not self.work.onnx:
            return module, inputs
        path = self.target.with_suffix(".onnx")
        found = self.torch.onnx.export(module, inputs, dynamo=True, verbose=False)
        found.save(path, external_data=True)
        return (path,)

    def optimized(self, name: str, budget: float, again: bool) -> None:
        """Add our program, searched within the budget from an empty store; with `again`, also once more from its
        measurements.
        """
        import tensor_graphs as tg
        from tensor_graphs.progress import Progress

        source = self.source()
        backend = "gpu" if self.device.name == "cuda" else "torch"
        with self.variant(name) as found, Watch() as watch:

            def say(stage: str, message: str) -> None:
                watch.stage = stage
                found.setdefault("log", []).append((round(time.monotonic() - start, 1), stage, message))

            for label in ("cold_s", "warm_s")[: 1 + again]:
                start = time.monotonic()
                program = tg.optimize(
                    *source, backend=backend, costdb=self.store / name, budget=budget, progress=Progress(say)
                )
                report = program.report
                found[label] = time.monotonic() - start - report.seconds.get("time", 0.0)
                found.setdefault("stages", {})[label] = {n: round(s, 2) for n, s in report.seconds.items()}
                found.setdefault("memory_said", {})[label] = list(report.plan_cache_notes)
                found.setdefault("measured", {})[label] = report.measured_now
                found.setdefault("measuring", {})[label] = report.measuring
                found.setdefault("cut", {})[label] = list(report.omitted)
                found.setdefault("timeline", {})[label] = report.timeline
                found["host"] = {stage: peak["total"] for stage, peak in watch.peak.items()}
                self.write()
            found |= described(program)
            found["declared"] = sum(program.memory().values())
            found["workspace"] = program.manifest.workspace
            found["before_us"], found["after_us"] = report.latency_before_us, report.latency_after_us
            self.target.with_name(f"{self.full.name}-{budget:g}.py").write_text(program.source)
            self.add(name, found, self.instances(program))


def measured(case: Whole) -> None:
    """Measure all variants of one model, ours first."""
    if HALVES:
        case.optimized(HALF, case.budget / 2, again=False)
    with case.torch.no_grad():
        case.eager()
        case.peers(MODES[:1])
    case.time()
    case.optimized("ours", case.budget, again=True)
    case.time()
    with case.torch.no_grad():
        case.peers(MODES[1:])
    case.time()


# ---------------------------------------------------------------- the table
HEAD = ("model", "limit µs", "eager", "compile", "max-autotune", "ours, half the budget", "ours µs", "× eager", "× best peer",
        "optimize s: half / cold / warm", "kernels", "error ours / eager", "MiB beside weights: ours / eager", "GiB of the host")  # fmt: skip


def line(record: Record) -> str:
    """A record as one row of the table."""
    variants = record["variants"]
    ours, half = (variants.get(n, {}) for n in ("ours", HALF))
    us = [
        f"{v['us']:.1f}" if "us" in (v := variants.get(n, {})) else "failed" if "failed" in v else ""
        for n in (*PEERS, HALF, "ours")
    ]
    limit = record.get("limit_us") or 0.0
    ratios = [f"{r:.2f}" if r else "" for r in (ratio(record, ("eager",)), ratio(record, PEERS))]
    seconds = " / ".join(f"{v[n]:.3g}" for v, n in ((half, "cold_s"), (ours, "cold_s"), (ours, "warm_s")) if n in v)
    errors, memory = (
        " / ".join(f"{shown(variants[n][key])}" for n in ("ours", "eager") if key in variants.get(n, {}))
        for key, shown in (("error", "{:.1e}".format), ("memory", lambda b: f"{b / 2**20:.0f}"))
    )
    host = max([*half.get("host", {}).values(), *ours.get("host", {}).values()], default=0.0)
    kernels = str(len(ours["kernels"])) if "kernels" in ours else ""
    cells = [
        record["name"],
        f"{limit:.0f}" if limit else "",
        *us,
        *ratios,
        seconds,
        kernels,
        errors,
        memory,
        f"{host / 2**30:.1f}" if host else "",
    ]
    return f"| {' | '.join(cells)} |"


def render(records: dict[str, Record]) -> str:
    """The table of these records as Markdown."""
    found = [records[n] for n in MODELS if n in records]
    failed = [
        f"- failed: {r['name']}: {n}: {v['failed'].partition(chr(10))[0]}"
        for r in found for n, v in r["variants"].items() if "failed" in v
    ]  # fmt: skip
    after = lambda r: " after ours was measured" if "us" in r["variants"].get("ours", {}) else ""
    failed += [f"- failed: {r['name']}: {r['failed']}{after(r)}" for r in found if "failed" in r]
    failed += [
        f"- {r['name']}, {label.removesuffix('_s')}: {why}"
        for r in found for label, text in r["variants"].get("ours", {}).get("memory_said", {}).items() for why in text
    ]  # fmt: skip
    legend = (
        "µs a call: median of replays of CUDA graphs over rotating arguments, in turn. Peers: eager PyTorch and torch.compile's modes, in "
        "CUDA graphs as well. Ours is optimized from an empty store within half the budget and within all of it, and again from what "
        "that has measured; seconds leave out timing the finished program. Errors are relative to float64 (Frobenius). Memory: what a "
        "call takes at its peak on the device beside weights and inputs; of the host, what optimizing takes with all its processes, "
        "libraries and weights included. Warm seconds near the cold ones: the remembered plan was not used, for "
        "what is said below."
    )
    kernels = [
        f"- {r['name']}: {how(r['variants']['ours'])}" for r in found if r["variants"].get("ours", {}).get("kernels")
    ]
    machines = dict.fromkeys(
        f"- {r['machine']}, {r['toolchain']}, budget {r.get('budget', 0):g} s" for r in found if "machine" in r
    )
    commits = ", ".join(sorted({str(r["commit"]) for r in found if "commit" in r}))
    return "\n".join([
        "# Whole models on a GPU", "", f"| {' | '.join(HEAD)} |", "|" + "---|" * len(HEAD), *map(line, found), "", legend, "",
        *failed, *machines, f"- commits {commits}", "", "## Kernels", "", *kernels,
    ]) + "\n"  # fmt: skip


SUITE = Suite(
    "gpu_models", "whole_models", MODELS, TINY, Whole, measured, shortened, line, render, budget=60.0, seconds=300.0
)

if __name__ == "__main__":
    sys.exit(SUITE.main(__doc__))
