"""Short searches of modules that are on the GPU, beside long ones: `python -m benchmarks.search.short_calls [--only
NAME ...] [--budgets 5] [--reference 60] [--together 6] [--seconds 200] [--to FOLDER]`.

Each search is a process of its own with an empty home, which imports, puts the module on the device, optimizes it and
times whole calls beside eager ones (medians of alternating rounds, `call_overhead.in_turn`). Searches of `--budgets`
run one at a time, those of `--reference` seconds side by side (measurements take turns; 0: none); the rows of these are
kept in FOLDER/stores. Recorded besides the report: CPU seconds of each thread of the calling process, and of its
functions, by samples of their stacks every 10 ms (one counts the CPU time since the last). FOLDER/results.json has all
records; printed is a table.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ..common import WORK

NAMES = ("efficientnet", "swin", "regnety", "yolo", "bottlenecks", "bert")
#: Short names of modules of `benchmarks.models.cpu_further_models`.
FURTHER = {"regnety": "RegNetY, 3 blocks of 128, 28 x 28", "yolo": "YOLO-like, 128 x 128", "inception": "Inception block, 17 x 17",
           "deeplab": "DeepLab head, 24 x 24", "densenet": "DenseNet block, 6 layers, 28 x 28"}  # fmt: skip
START_S = 25.0  # seconds that a process may take beyond its budget
PERIOD_S, DEPTH = 0.01, 3  # of samples; functions of this project by which a sample is named
Record = dict[str, Any]


def made(name: str) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """(module, inputs on the host, options) by name: floats have 16 bits."""
    import torch

    from ..models import gpu_call_models, small_budget_modules

    torch.manual_seed(0)
    if name == "bert":
        from .timeline import made as workload

        module, inputs, tolerance = workload("bert_base_fp16_b8_t128")
        return module, inputs, {} if tolerance is None else {"tolerance": tolerance}
    if name in gpu_call_models.MODULES:
        return (*gpu_call_models.build(name), {})
    if name in small_budget_modules.NAMES:
        module, inputs = small_budget_modules.build(name, large=True)
    else:
        from ..models.cpu_further_models import FURTHER as TABLE
        from ..models.peer_models import trained

        module, inputs = TABLE[FURTHER[name]]()
        with torch.no_grad():
            trained(module)
    module = module.eval().requires_grad_(False).half()
    return module, tuple(x.half() if x.is_floating_point() else x for x in inputs), {}


class Sampler(threading.Thread):
    """Samples the threads of this process: `cpu` is CPU seconds by thread, `functions` by (thread, functions of this
    project on its stack, innermost first)."""

    def __init__(self) -> None:
        super().__init__(name="sampler", daemon=True)
        self.cpu, self.functions, self.over = Counter[str](), Counter[str](), threading.Event()

    def run(self) -> None:
        """Sample until `over` is set."""
        last = {thread.ident: _cpu_seconds(thread) for thread in threading.enumerate()}
        while not self.over.wait(PERIOD_S):
            frames = sys._current_frames()
            for thread in threading.enumerate():
                if thread is self or thread.ident not in frames:
                    continue
                used = _cpu_seconds(thread)
                spent = max(0.0, used - last.get(thread.ident, 0.0))
                last[thread.ident] = used
                self.cpu[thread.name] += spent
                self.functions[f"{thread.name}: {' < '.join(_named(frames[thread.ident]))}"] += spent

    def found(self) -> Record:
        """CPU seconds by thread and by function, the most first."""
        return {k: {n: round(s, 2) for n, s in c.most_common(60) if s >= 0.02}
                for k, c in (("cpu", self.cpu), ("functions", self.functions))}  # fmt: skip


def _cpu_seconds(thread: threading.Thread) -> float:
    """CPU seconds that a thread has used; 0 if it has ended."""
    try:
        return time.clock_gettime(time.pthread_getcpuclockid(thread.ident or 0))
    except OSError:
        return 0.0


def _named(frame: Any) -> list[str]:
    found: list[str] = []
    while frame is not None and len(found) < DEPTH:
        code = frame.f_code
        if "tensor_graphs" in code.co_filename or not found:
            found.append(f"{Path(code.co_filename).stem}.{code.co_name}")
        frame = frame.f_back
    return found


def search(name: str, budget: float, store: Path, target: Path) -> None:
    """Optimize a module in this process; write the record to `target`."""
    import torch

    import tensor_graphs as tg
    from tensor_graphs.backends.tuning.gpu_worker import with_gpu_lock

    from ..gpu.call_overhead import in_turn

    module, inputs, options = made(name)
    module, given = module.cuda(), tuple(x.cuda() for x in inputs)
    torch.cuda.synchronize()
    sampler = Sampler()
    sampler.start()
    began, cpu = time.monotonic(), time.process_time()
    program = tg.optimize(module, given, budget=budget, costdb=store, **options)
    took, cpu = time.monotonic() - began, time.process_time() - cpu
    sampler.over.set()
    fields = program.report.fields()
    plan = [] if program.plan is None else [s for s in program.plan.steps if not s.is_view]
    record = {"name": name, "budget": budget, "took_s": took, "cpu_s": cpu, "text": str(program.report), "timeline": program.report.timeline,
              "sampled": sampler.found(), "runs": program.report.runs,
              "plan": [[s.template.name, s.template.pattern[:160], [[list(o.type.shape), o.type.dtype, list(o.strides)] for o in s.call.buffers.values()],
                        round(s.cost.us, 2), s.cost.source, dict(s.call.schedule)] for s in plan],
              **{k: fields[k] for k in ("seconds", "measuring", "omitted", "priced", "cost_us", "warnings") if k in fields}}  # fmt: skip
    target.write_text(json.dumps(record, default=str))
    with torch.no_grad(), with_gpu_lock():
        calls = in_turn({"ours": lambda i: program(*given), "eager": lambda i: module(*given)})
    record["us"] = {name: us["call_us"] for name, us in calls.items()}
    target.write_text(json.dumps(record, default=str))
    os._exit(0)


class Run:
    """One run of the benchmark: its options, its deadline, and the records so far."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.until, self.lock = options, time.monotonic() + options.seconds, threading.Lock()
        self.to: Path = options.to
        self.to.mkdir(parents=True, exist_ok=True)
        self.file = self.to / "results.json"
        self.found: dict[str, dict[str, Record]] = json.loads(self.file.read_text()) if self.file.exists() else {}

    def one(self, name: str, label: str, budget: float, store: Path | None = None) -> None:
        """Search in a process of its own and keep the record."""
        left = self.until - time.monotonic()
        if left < budget + START_S / 2:
            return
        with tempfile.TemporaryDirectory() as home:
            known = {**os.environ, "TENSOR_GRAPHS_HOME": home, "TRITON_CACHE_DIR": f"{home}/triton"}
            if store is not None:
                known["TENSOR_GRAPHS_GPU_LOCK"] = str(self.to / "gpu.lock")
            target = Path(home) / "record.json"
            command = [
                sys.executable,
                "-m",
                "benchmarks.search.short_calls",
                "--child",
                name,
                str(budget),
                str(store or f"{home}/store"),
                str(target),
            ]
            try:
                done = subprocess.run(
                    command, env=known, timeout=min(left, budget + START_S), capture_output=True, text=True, check=False
                )
                failed = done.stderr[-600:]
            except subprocess.TimeoutExpired:
                failed = "it did not end in time"
            record = json.loads(target.read_text()) if target.exists() else {"failed": failed}
        with self.lock:
            self.found.setdefault(name, {})[label] = record
            self.file.write_text(json.dumps(self.found) + "\n")
        us = record.get("us", {})
        print(f"{name} {label}: call {record.get('took_s', 0):.1f} s, {us.get('ours', 0):.1f} µs, eager {us.get('eager', 0):.1f}, "
              f"{len(record.get('plan', ()))} kernels {record.get('priced')} {record.get('failed', '')}", flush=True)  # fmt: skip

    def references(self) -> None:
        """The long searches, side by side."""
        with ThreadPoolExecutor(self.options.together) as threads:
            list(
                threads.map(
                    lambda n: self.one(n, "reference", self.options.reference, self.to / "stores" / n),
                    self.options.only,
                )
            )


def table(found: dict[str, dict[str, Record]]) -> str:
    """The records as Markdown."""
    labels = list(dict.fromkeys(label for row in found.values() for label in row))
    lines = [
        f"| module | eager | {' | '.join(f'{x}, µs (kernels, call)' for x in labels)} |",
        "|---" * (2 + len(labels)) + "|",
    ]
    for name, row in found.items():
        eager = next((r["us"]["eager"] for r in row.values() if "us" in r), 0.0)
        cells = [
            f"{r['us']['ours']:.0f} ({len(r['plan'])}, {r['took_s']:.1f} s)" if (r := row.get(x, {})).get("us") else ""
            for x in labels
        ]
        lines.append(f"| {name} | {eager:.0f} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Parse the command line, run the searches, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=list(NAMES), metavar="NAME")
    parser.add_argument("--budgets", type=float, nargs="*", default=[5.0])
    parser.add_argument("--reference", type=float, default=60.0, help="budget of the long searches; 0: none")
    parser.add_argument("--together", type=int, default=6, help="long searches side by side")
    parser.add_argument("--seconds", type=float, default=200.0, help="of the whole run")
    parser.add_argument("--to", type=Path, default=WORK / "short_calls")
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        name, budget, store, target = options.child
        search(name, float(budget), Path(store), Path(target))
        return
    run = Run(options)
    for budget in options.budgets:
        for name in options.only:
            run.one(name, f"{budget:g}", budget)
    if options.reference:
        run.references()
    print(table(run.found))


if __name__ == "__main__":
    main()
