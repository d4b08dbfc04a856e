"""Small budgets on a CPU beside eager PyTorch, `torch.compile` and ONNX Runtime: `python -m
benchmarks.cpu.small_budget_peers [--models TITLE ...] [--budgets 2 5 20] [--threads N] [--busy] [--peers NAME ...]`.

Networks of models/cpu_first_models.py, given as modules, as ONNX files and as quantized ONNX files. Each search is a
process with an empty home, as on a fresh machine. Then one process calls all programs of a network, the module, the
compiled module and ONNX Runtime in turn: in CPU time of the process with one thread, in wall time with more. Ratios are
medians over rounds, above 1 where ours is faster. With `--busy` the clock of a search is that of quiet_clock.py, and
searches time kernels by CPU time. Results go to results/raw/small_budget_peers.json and results/small_budget_peers.md.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from ..common import WORK, in_process

RESULTS = Path(__file__).parents[1] / "results"
PEERS = {"eager": "eager", "compile": "torch.compile", "onnxruntime": "ONNX Runtime"}
ROUNDS, LIMIT_S = 30, 500
KEPT = ("runs", "cost_us", "seconds", "priced", "measured_now", "omitted")  # fields of a report


def source(title: str, folder: Path, modules: bool) -> tuple[Any, ...]:
    """What a search is given: the module and its inputs, or the ONNX file in `folder`."""
    from ..models import cpu_first_models as models

    form = models.MODELS[title][1]
    if form == "module" or (modules and form == "onnx"):
        return models.build(title)
    return (folder / ("model.QDQ.onnx" if form == "quantized" else "model.onnx"),)


def search(title: str, budget: float, folder: str, busy: bool, modules: bool) -> dict[str, Any]:
    """Optimize a network in this process and save its program under the budget's name in `folder`; returns seconds of
    the call and fields of the report."""
    import torch

    from ..models import cpu_first_models as models
    from . import quiet_clock

    warnings.simplefilter("ignore")
    wall = time.perf_counter
    if busy:
        quiet_clock.install()
    import tensor_graphs as tg

    from . import small_budgets

    given, optimize, more = source(title, Path(folder), modules), tg.optimize, dict[str, Any]()
    if busy:
        small_budgets.measure_busy()
    if free := models.MODELS[title][2]:
        dims = {name: torch.export.Dim(name, min=1, max=512) for sizes in free for name in sizes.values()}
        more["dynamic_shapes"] = tuple({axis: dims[name] for axis, name in sizes.items()} for sizes in free)
    began, before = time.monotonic(), wall()
    program = optimize(*given, budget=budget, **more)
    found = {"s": time.monotonic() - began, "wall_s": wall() - before}
    report = program.report
    if report.runs != "caller":
        program.save(Path(folder) / f"{budget:g}")
    kernels = [[k.name, k.count, round(k.us, 1), k.source] for k in report.kernels]
    found |= {name: getattr(report, name) for name in KEPT}
    return json.loads(json.dumps({**found, "kernels": kernels}, default=str))  # type: ignore[no-any-return]


def peers(title: str, folder: Path, threads: int, wanted: list[str], modules: bool) -> dict[str, Any]:
    """Calls of the other implementations, and why some have failed, under "failed"."""
    from ..models import cpu_first_models as models
    from . import one_thread, quantized_cnns
    from .onnxruntime_call import onnxruntime_call

    module, inputs = models.build(title)
    calls, failed = dict[str, Any](), dict[str, str]()
    quantized = models.MODELS[title][1] == "quantized"

    def quantized_call() -> Callable[[], Any]:
        call, _ = quantized_cnns.session_of(folder / "model.QDQ.onnx", threads)
        return lambda: call(inputs[0].numpy())

    made: dict[str, Callable[[], Any]] = {"onnxruntime": quantized_call} if quantized else {
        "eager": lambda: lambda: module(*inputs),
        "onnxruntime": lambda: onnxruntime_call(module, inputs, threads),
        "compile": lambda: one_thread.compiled(module, inputs),
    }  # fmt: skip
    for name, make in made.items():
        if name in wanted:
            try:
                calls[name] = make()
            except Exception as error:
                failed[name] = f"{type(error).__name__}: {error}"[:200]
    return {**calls, "failed": failed}


def measure(title: str, folder: str, threads: int, wanted: list[str], modules: bool) -> dict[str, Any]:
    """Times in µs of the programs in `folder` and of the peers, called in turn."""
    import torch

    import tensor_graphs as tg

    from ..models import cpu_first_models as models
    from . import quantized_cnns

    warnings.simplefilter("ignore")
    torch.set_num_threads(threads)
    quantized_cnns.ROUNDS = ROUNDS
    _, inputs = models.build(title)
    arrays = models.MODELS[title][1] != "module" and not modules
    given = tuple(x.numpy() for x in inputs) if arrays else inputs
    programs = {p.name: tg.load_program(p) for p in sorted(Path(folder).iterdir()) if p.is_dir()}
    with torch.no_grad():
        calls = peers(title, Path(folder), threads, wanted, modules)
        failed = calls.pop("failed")
        calls |= {name: lambda program=program: program(*given) for name, program in programs.items()}
        return {"times": quantized_cnns.in_turn(calls, threads), "failed": failed}


def written(title: str, folder: str) -> str:
    """Write the ONNX file of a network into `folder`; returns its path."""
    from ..models.cpu_first_models import write

    return str(write(title, Path(folder)))


def network(title: str, options: argparse.Namespace) -> dict[str, Any]:
    """Searches and times of a network: by budget the report's fields, and the ratios of the peers' times to ours."""
    from ..models.cpu_first_models import MODELS

    folder = options.to / title.replace(" ", "-").replace(",", "")
    folder.mkdir(parents=True, exist_ok=True)
    form = MODELS[title][1]
    if form != "module" and not (options.modules and form == "onnx") and not list(folder.glob("*.onnx")):
        in_process(title, f"small_budget_peers.written({title!r}, {str(folder)!r})", 1, LIMIT_S)
    found: dict[str, Any] = {"budgets": {}, "ratio": {}, "load": os.getloadavg()[0]}
    for budget in options.budgets:
        with tempfile.TemporaryDirectory(prefix="home-") as home:
            os.environ["TENSOR_GRAPHS_HOME"] = home
            given = f"{title!r}, {budget}, {str(folder)!r}, {options.busy}, {options.modules}"
            found["budgets"][f"{budget:g}"] = in_process(title, f"small_budget_peers.search({given})", options.threads, LIMIT_S)  # fmt: skip
    given = f"{title!r}, {str(folder)!r}, {options.threads}, {options.peers}, {options.modules}"
    found |= in_process(title, f"small_budget_peers.measure({given})", options.threads, LIMIT_S)
    times = found.pop("times")
    for name in found["budgets"]:
        if name in times:
            others = {p: median(a / b for a, b in zip(times[p], times[name])) for p in times if p != name}
            found["ratio"][name] = {p: round(x, 3) for p, x in others.items()}
    return found


def rendered(found: dict[str, Any]) -> str:
    """The results as Markdown."""
    lines = ["# Small budgets on a CPU beside peers", "", __doc__.split("\n\n")[1].replace("\n", " ").strip(), "",
             f"{found['machine']}.", "",
             "| network | budget, s (call) | " + " | ".join(f"{n} / ours" for n in PEERS.values())
             + " | runs | longest budget / ours | measured, left out | commit, date |", "|" + "---|" * 9]  # fmt: skip
    for title, r in found["networks"].items():
        longest = max(r["budgets"], key=float)
        for budget, b in r["budgets"].items():
            ratio = r["ratio"].get(budget, {})
            cells = [f"{ratio[p]:.2f}" if p in ratio else "" for p in PEERS]
            best = f"{ratio[longest]:.2f}" if longest in ratio else ""
            left = "; ".join(map(str, b["omitted"])) or "nothing"
            lines.append(
                f"| {title} | {budget} ({b['s']:.1f}) | {' | '.join(cells)} | {b['runs']} | {best} | {b['measured_now']}; {left} | {r['at']} |"
            )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Parse the command line, measure the networks one after another, store and render after each."""
    from tensor_graphs.costdb.keys.device import device_key

    from ..models.cpu_first_models import MODELS
    from ..run import commit

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=list(MODELS), metavar="TITLE", help="titles or their beginnings")
    parser.add_argument("--budgets", nargs="*", type=float, default=[2.0, 5.0, 20.0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=list(PEERS))
    parser.add_argument("--busy", action="store_true", help="the machine is busy: clock and times by CPU time")
    parser.add_argument("--modules", action="store_true", help="modules instead of ONNX files (not the quantized ones)")
    parser.add_argument("--to", type=Path, default=WORK / "small_budget_peers", help="folder of models and programs")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the results")
    options = parser.parse_args()
    raw = options.results / "raw/small_budget_peers.json"
    raw.parent.mkdir(parents=True, exist_ok=True)
    for title in [t for t in MODELS if any(t.startswith(m) for m in options.models)]:
        try:
            row = network(title, options)
        except RuntimeError as error:
            print(error, flush=True)
            continue
        found: dict[str, Any] = json.loads(raw.read_text()) if raw.exists() else {"networks": {}}
        found["machine"] = f"{device_key()}, {options.threads} thread{'s' * (options.threads > 1)}"
        found["networks"][title] = row | {"at": f"{commit()}, {time.strftime('%Y-%m-%d %H:%M')}"}
        raw.write_text(json.dumps(found, indent=1) + "\n")
        (options.results / "small_budget_peers.md").write_text(rendered(found))
        calls = {b: round(r["s"], 1) for b, r in row["budgets"].items()}
        print(title, calls, row["ratio"], row["failed"] or "", f"load {row['load']:.0f}", flush=True)


if __name__ == "__main__":
    main()
