"""Whole calls of modules on a GPU beside eager PyTorch and `torch.compile` in three modes: `python -m
benchmarks.gpu.modules [--only NAME ...] [--budget S] [--seconds S] [--render]`.

Modules of models/gpu_call_models.py, each in a process of its own, in which a second process compiles the peers while
ours is searched (from an empty store); measurements of all of them take turns on the GPU. Calls are a caller's: inputs
at other addresses each time, calls issued back to back. µs are medians of alternating rounds (`call_overhead.in_turn`);
those of kernels alone are of CUDA graphs of twenty calls. Errors are relative to the module in float64. Records go to
results/raw/gpu_modules.json, those with the kernels that ran, report and timeline of the search to `--work`;
results/gpu_modules.md is made of the former.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import subprocess
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

HERE = Path(__file__).parents[1]
MODES = ("default", "reduce-overhead", "max-autotune")
PEERS = ("eager", *MODES)
BACKEND = "backend"  # a form of ours: torch.compile(backend="tensor_graphs"), searched again
SETS, BEHIND = 8, 0.97
Record = dict[str, Any]


def flat(found: Any) -> list[Any]:
    """All tensors of a result."""
    return list(found) if isinstance(found, list | tuple) else [found]


def error(found: Any, exact: Any) -> float:
    """Largest relative error (Frobenius) of a result's tensors."""
    return max(float((x.double() - y).norm() / y.norm()) for x, y in zip(flat(found), flat(exact), strict=True))


def compiled_ahead(name: str, modes: Sequence[str]) -> None:
    """Compile a module in modes of `torch.compile`, which fills its caches on disk."""
    import torch

    from ..models.gpu_call_models import build
    from .case import share_the_gpu

    share_the_gpu()
    module, given = build(name)
    module, given = module.cuda(), tuple(x.cuda() for x in given)
    for mode in modes:
        with torch.no_grad(), suppress(Exception):
            torch.compile(module, mode=mode, dynamic=False)(*given)
        torch._dynamo.reset()
        print(f"{name}: {mode} compiled", file=sys.stderr, flush=True)


def measure(name: str, budget: float, target: Path, wait: float, modes: Sequence[str]) -> None:
    """Measure a module in this process beside `modes` of `torch.compile`; the record is written to `target` after each
    step. `wait`: seconds after its start for which compiling ahead is waited for, which is done for max-autotune."""
    import torch

    import tensor_graphs as tg
    from tensor_graphs.backends.tuning.gpu_worker import with_gpu_lock

    from ..models.gpu_call_models import build
    from ..torch_compile.training_profile import kernels_of
    from .call_overhead import in_turn, kernels_us
    from .case import machine, share_the_gpu

    begun = time.monotonic()
    warnings.simplefilter("ignore")
    slow = MODES[-1] in modes
    peers = [m for m in modes if m != BACKEND]
    command = [sys.executable, "-m", "benchmarks.gpu.modules", "--ahead", name, "--modes", *peers]
    ahead = subprocess.Popen(command if slow else ["true"], cwd=HERE.parent, start_new_session=True)
    share_the_gpu()
    record: Record = {"name": name, "budget": budget, "forms": {}, "failed": {}}
    module, given = build(name)
    module, sets = module.cuda(), [tuple(x.cuda() for x in given) for _ in range(SETS)]
    start = time.monotonic()
    program = tg.optimize(module, sets[0], budget=budget)
    record |= {
        "optimize_s": time.monotonic() - start,
        "runs": program.report.runs,
        "omitted": list(program.report.omitted),
        "seconds": dict(program.report.seconds),
        "timeline": program.report.timeline,
        "measuring": program.report.measuring,
        "text": str(program.report),
    }
    steps = [] if program.plan is None else [s for s in program.plan.steps if not s.is_view]
    record["buffers"] = [[[o.type.shape, o.type.dtype, o.strides] for o in s.call.buffers.values()] for s in steps]
    record["plan"] = [
        [s.template.name, round(s.cost.us, 2), s.cost.source, dict(s.call.schedule), s.template.pattern[:160]]
        for s in steps
    ]  # fmt: skip
    from tensor_graphs.backends.tuning.gpu_device import device_of

    record |= {k: v for k, v in machine(device_of("cuda")).items() if k in ("machine", "toolchain", "commit", "date")}
    target.write_text(json.dumps(record, default=str))
    with suppress(subprocess.TimeoutExpired):
        ahead.wait(max(wait - (time.monotonic() - begun), 1.0))
    ahead.kill()
    calls: dict[str, Callable[[int], Any]] = {}
    with torch.no_grad():
        wide = [x.double() if x.is_floating_point() else x for x in sets[0]]
        exact = [y.cpu() for y in flat(copy.deepcopy(module).double()(*wide))]
        quick = [m for m in modes if m != MODES[-1]]
        for added in (("eager", "ours", *quick), *([MODES[-1:]] if slow else [])):  # the last may not be done in time
            for label in added:
                try:
                    how = {"backend": "tensor_graphs", "options": {"budget": budget, "wait": True}}
                    form = {"eager": module, "ours": program}.get(label) or torch.compile(
                        module, dynamic=False, **(how if label == BACKEND else {"mode": label})
                    )
                    for i in range(4):
                        found = form(*sets[i % SETS])
                    record["forms"][label] = {"error": error([x.cpu() for x in flat(found)], exact)}
                    if label == BACKEND:
                        record["backend_runs"] = [r.runs for r in tg.torch_compile.reports()]
                    calls[label] = lambda i, f=form: f(*sets[i % SETS])
                except Exception as problem:
                    traceback.print_exc()
                    record["failed"][label] = f"{type(problem).__name__}: {problem}"[:200]
            with with_gpu_lock():
                for label, us in in_turn(calls).items():
                    record["forms"][label] |= us
                target.write_text(json.dumps(record, default=str))
                capturable = {n: c for n, c in calls.items() if n in {"eager", "default", "ours"} & {*added}}
                for label, alone in (kernels_us(capturable) if capturable else {}).items():
                    record["forms"][label]["kernels_us"] = alone
                for label in {*added} & calls.keys():
                    record["forms"][label]["profile"] = kernels_of(lambda call=calls[label]: call(0))
            target.write_text(json.dumps(record, default=str))
    record["finished"] = True
    target.write_text(json.dumps(record, default=str))
    os._exit(0)  # graphs of peers may end a process at its exit


def shortened(record: Record) -> Record:
    """The fields of a record that are stored beside the table; all are in the file of the module's process."""
    forms = {
        n: {k: v if k != "profile" else {w: v[w] for w in ("kernels", "busy_us")} for k, v in f.items()}
        for n, f in record["forms"].items()
    }
    left = "timeline", "text", "buffers"
    return {**{k: v for k, v in record.items() if k not in left}, "forms": forms}


# ---------------------------------------------------------------- the table
def ratio(record: Record) -> float | None:
    """µs of the fastest peer's call divided by ours; None if either is missing."""
    us = {n: f["call_us"] for n, f in record["forms"].items() if "call_us" in f}
    peers = [us[n] for n in PEERS if n in us]
    return min(peers) / us["ours"] if peers and "ours" in us else None


def line(record: Record) -> str:
    """A record as a row of the table."""
    forms = record["forms"]
    us = [f"{forms[n]['call_us']:.1f}" if "call_us" in forms.get(n, {}) else "" for n in (*PEERS, "ours")]
    alone = [f"{forms[n]['kernels_us']:.1f}" if "kernels_us" in forms.get(n, {}) else "" for n in ("default", "ours")]
    errors = [f"{forms[n]['error']:.1e}" if "error" in forms.get(n, {}) else "" for n in ("ours", "eager")]
    kernels = ", ".join(f"{n} x{c}" if c > 1 else n for n, c in Counter(p[0] for p in record.get("plan", ())).items())
    best = ratio(record)
    cells = [record["name"], *us, f"{best:.2f}" if best else "", " / ".join(alone), " / ".join(errors),
             record.get("runs", ""), f"{record.get('optimize_s', 0):.1f}", kernels or record.get("ended", "")]  # fmt: skip
    return f"| {' | '.join(cells)} |"


HEAD = ("module", "eager", "compile", "reduce-overhead", "max-autotune", "ours µs", "× best peer", "kernels alone: compile / ours",
        "error ours / eager", "runs", "optimize s", "our kernels")  # fmt: skip


def render(records: Mapping[str, Record]) -> str:
    """The table of the records as Markdown."""
    found = [records[n] for n in sorted(records)]
    behind = [f"{r['name']} ({x:.2f})" for r in found if (x := ratio(r)) is not None and x < BEHIND]
    timed = sum(ratio(r) is not None for r in found)
    summary = f"{timed} timed; slower than the best peer by more than 3 %: {', '.join(behind) or 'none'}."
    failed = [f"- {r['name']}: {n}: {what}" for r in found for n, what in r["failed"].items()]
    machines = dict.fromkeys(
        f"- {r['machine']}, {r['toolchain']}, budget {r['budget']:g} s, commit {r['commit']}"
        for r in found
        if "machine" in r
    )
    legend = (__doc__ or "").partition("\n\n")[2]
    head = f"| {' | '.join(HEAD)} |", "|" + "---|" * len(HEAD)
    return "\n".join(["# Whole calls of modules on a GPU", "", summary, "", *head, *map(line, found), "", legend, *failed, *machines]) + "\n"  # fmt: skip


def run_one(name: str, options: argparse.Namespace, until: float) -> Record:
    """Measure a module in a process of its own; returns its record, with the reason if the process did not finish."""
    target = options.work / f"{name}.json"
    target.unlink(missing_ok=True)
    left = min(options.case_seconds, until - time.monotonic())
    if left < options.budget + 16:
        return {"name": name, "forms": {}, "failed": {}, "ended": "no time was left"}
    print(f"== {name} ({left:.0f} s)", file=sys.stderr, flush=True)
    command = [sys.executable, "-m", "benchmarks.gpu.modules", "--child", name, "--budget", str(options.budget), "--wait",
               str(left - 20), "--work", str(options.work), "--modes", *options.modes]  # fmt: skip
    environment = {**os.environ, "TENSOR_GRAPHS_GPU_LOCK": str(options.work / "gpu.lock"),
                   "TENSOR_GRAPHS_HOME": str(options.work / "home" / name)}  # fmt: skip
    from .workloads import waited

    log = (options.work / f"{name}.log").open("wb")
    process = subprocess.Popen(
        command, cwd=HERE.parent, start_new_session=True, env=environment, stdout=log, stderr=log
    )
    ended = waited(process, left)
    found: Record = json.loads(target.read_text()) if target.exists() else {"name": name, "forms": {}, "failed": {}}
    return found if found.get("finished") else {**found, "ended": ended or "it did not finish"}


def main() -> int:
    """Measure modules and write the table; returns how many did not finish."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="NAME")
    parser.add_argument("--budget", type=float, default=15.0, help="seconds of each optimization")
    parser.add_argument("--seconds", type=float, default=540.0, help="of the whole run")
    parser.add_argument("--case-seconds", type=float, default=100.0, help="of one module")
    parser.add_argument("--together", type=int, default=3, help="modules side by side (measurements take turns)")
    parser.add_argument(
        "--modes", nargs="+", default=list(MODES), help=f"of torch.compile; {BACKEND}: our backend for it"
    )
    parser.add_argument("--work", type=Path, default=HERE.parent / "out/bench/gpu_modules")
    parser.add_argument("--results", type=Path, default=HERE / "results", help="folder of records and table")
    parser.add_argument("--render", action="store_true", help="only write the table again")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--ahead", help=argparse.SUPPRESS)
    parser.add_argument("--wait", type=float, default=60.0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.ahead:
        compiled_ahead(options.ahead, options.modes)
        return 0
    options.work.mkdir(parents=True, exist_ok=True)
    if options.child:
        measure(options.child, options.budget, options.work / f"{options.child}.json", options.wait, options.modes)
        return 0
    from ..models.gpu_call_models import MODULES

    raw = options.results / "raw/gpu_modules.json"
    raw.parent.mkdir(parents=True, exist_ok=True)
    records = json.loads(raw.read_text()) if raw.exists() else {}
    until = time.monotonic() + options.seconds

    def one(name: str) -> bool:
        found = run_one(name, options, until)
        if found["forms"] or name not in records:
            records[name] = shortened(found)
        raw.write_text(json.dumps(dict(sorted(records.items())), indent=1) + "\n")
        print(line(found), flush=True)
        return not found.get("finished")

    with ThreadPoolExecutor(options.together) as threads:
        failed = 0 if options.render else sum(threads.map(one, options.only or list(MODULES)))
    (options.results / "gpu_modules.md").write_text(render(records))
    return failed


if __name__ == "__main__":
    sys.exit(main())
