"""The GPU table: `python -m benchmarks.gpu.workloads [--only NAME ...] [--seconds 540] [--ours-only] [--render |
--explain]`.

Prepare a bare machine with `. benchmarks/gpu/setup.sh`. Each workload runs in a process of its own, in several
variants: eager PyTorch, torch.compile (default and max-autotune), XLA if JAX is installed, our program, and our program
of generated kernels only. All variants are captured in CUDA graphs over rotating arguments, so that weights come from
memory, and replayed in turn. Each result is written at once to results/gpu/NAME.json; results/gpu.md is made from all
of them. A run begins with the workloads measured longest ago and ends after `--seconds`: several short runs replace a
long one. The provenance of our program is stored beside each record, in NAME.origin/: `--explain` derives from it,
without a GPU, by which rules the program was found. With `--ours-only`, the peers' times of an earlier run on the same
kind of machine are kept, and marked.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from benchmarks.gpu.case import (
    OURS,
    RESTS,
    Case,
    Record,
    compiled_as,
    explained,
    found_as,
    keep_origin,
    origin_in,
    share_the_gpu,
)
from benchmarks.gpu.table import PEERS, line, render

HERE = Path(__file__).parents[1]
RESULTS = HERE / "results/gpu"
TABLE = HERE / "results/gpu.md"
CASE_S, WARM_S = 240.0, 150.0  # most seconds of a case, of compiling ahead
LAST_S = 45.0  # least seconds to begin a case with
_writing = threading.Lock()


def explain_all(names: Sequence[str]) -> int:
    """Explain the stored results of workloads; returns how many were explained.

    If the provenance of a program was not kept, its plan is found again (`again`).
    """
    count = 0
    for name in names:
        folder, found = origin_in(RESULTS, name), stored(name)
        ours: Record = {} if found is None else found["variants"].get("ours", {})
        if found is None or not ours.get("kernels") or not (folder.is_dir() or again(name, ours, folder)):
            continue
        ours |= explained(folder)
        (RESULTS / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")
        count += 1
    return count


def again(name: str, ours: Record, folder: Path) -> bool:
    """Find the plan of a record again (again.py) and write its provenance; returns whether it was found."""
    from benchmarks.gpu.again import found_again, kernel
    from benchmarks.models.workloads import WORKLOADS
    from tensor_graphs.pipeline.stages.provenance import write_origin

    inputs, weights = WORKLOADS[name].arguments("cpu")
    plan = found_again(WORKLOADS[name].module(weights), inputs, ours["kernels"])
    if plan is None:
        return False
    keep_origin(partial(write_origin, origin=plan.origin), plan.searched, folder)
    origins = {kernel(s.template): found_as(s) for s in plan.steps}
    for k in ours["kernels"]:
        k |= origins[k["kernel"], k["pattern"]]
    ours["found_again"] = True
    return True


def child(options: argparse.Namespace) -> None:
    """Measure one case in this process, or only compile its peers' kernels into the caches on disk."""
    if options.child == "warm":
        warm(options.case, options.device, options.small)
        return
    from benchmarks.models.workloads import WORKLOADS, small

    share_the_gpu()
    full = WORKLOADS[options.case]
    work = small(full) if options.small else full
    case = Case(full, work, options.to, options.device, options.budget, options.store)
    case.record["together"] = options.together
    case.write()
    with case.torch.no_grad():
        case.eager()
        if not options.ours_only:
            case.peers()
    case.time()
    if not options.ours_only:
        case.xla()
    case.ours()
    case.time(RESTS)
    case.explain()
    case.record["finished"] = True
    case.write()


def warm(name: str, device: str, small: bool) -> None:
    """Compile a workload in the modes of torch.compile, which fills the caches on disk.

    Processes of several workloads share the GPU, but each measurement has the GPU alone.
    """
    import torch

    from benchmarks.models import workloads

    share_the_gpu()
    work = workloads.small(workloads.WORKLOADS[name]) if small else workloads.WORKLOADS[name]
    inputs, weights = work.arguments(device)
    with torch.no_grad():
        for mode in ("default", "max-autotune"):
            compiled_as(work.call, mode)(*inputs, *weights)
            torch._dynamo.reset()


def stored(name: str) -> Record | None:
    """The stored record of a case; None if there is none."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def all_stored() -> list[Record]:
    """The stored records of all workloads."""
    from benchmarks.models.workloads import WORKLOADS

    return [r for n in WORKLOADS if (r := stored(n)) is not None]


def started(
    arguments: Sequence[str], options: argparse.Namespace, module: str = "benchmarks.gpu.workloads"
) -> subprocess.Popen[bytes]:
    """Start a process of `module` with these arguments, with the device, sizes and folders of the options."""
    more = ["--device", options.device, *(["--small"] if options.small else [])]
    lock = options.work / "gpu.lock"
    environment = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false", "TENSOR_GRAPHS_GPU_LOCK": str(lock)}
    environment.setdefault("TENSOR_GRAPHS_HOME", str(options.work / "home"))
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments, *more],
        cwd=HERE.parent,
        start_new_session=True,
        env=environment,
    )


def waited(process: subprocess.Popen[bytes], seconds: float) -> str:
    """Wait for a process; returns "" if it succeeded, else how it ended.

    It is killed with all its children after `seconds`.
    """
    try:
        code = process.wait(max(seconds, 0.1))
        return "" if code == 0 else f"the process ended with code {code}"
    except subprocess.TimeoutExpired:
        return f"stopped after {seconds:.0f} s"
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def run_case(name: str, options: argparse.Namespace, seconds: float) -> Record:
    """Measure a case in a process of its own; returns its record, with the reason if the process failed."""
    target = options.work / f"{name}.json"
    target.unlink(missing_ok=True)
    shutil.rmtree(origin_in(options.work, name), ignore_errors=True)
    arguments = ["--child", "time", "--case", name, "--to", str(target), "--budget", str(options.budget),
                 "--store", str(options.store / name), "--together", str(options.together),
                 *(["--ours-only"] if options.ours_only else [])]  # fmt: skip
    return recorded(name, target, waited(started(arguments, options), seconds))


def recorded(name: str, target: Path, ended: str) -> Record:
    """The record that the process of a case wrote; `ended` (if not empty) is added as its failure, with the variant
    that was running.
    """
    found: Record = json.loads(target.read_text()) if target.exists() else {"name": name, "variants": {}}
    running = found.pop("running", "")
    return {**found, "failed": f"{running}: {ended}" if running else ended} if ended else found


def merged(old: Record | None, new: Record) -> Record:
    """A new record, completed with times of an old one for variants that the new one did not measure.

    Only if both are of the same machine and sizes.
    """
    if old is None or any(old.get(k) != new.get(k) for k in ("machine", "small")):
        return new
    for name in (*PEERS, *OURS):
        found, before = new["variants"].get(name), old["variants"].get(name)
        if before and "us" in before and "us" not in (found or {}):
            kept = {**before, "kept_from": before.get("kept_from", f"{old['date']}, {old['toolchain']}")}
            new["variants"][name] = {**kept, **({"failed": found["failed"]} if found and "failed" in found else {})}
    return new


def run(options: argparse.Namespace) -> int:
    """Measure cases, those measured longest ago first, until the time is up; returns how many failed.

    Raises SystemExit for an unknown name.
    """
    from benchmarks.models.workloads import WORKLOADS

    RESULTS.mkdir(parents=True, exist_ok=True)
    options.work.mkdir(parents=True, exist_ok=True)
    names = options.only or list(WORKLOADS)
    if unknown := set(names) - set(WORKLOADS):
        raise SystemExit(f"no workloads are called {sorted(unknown)}; there are {', '.join(WORKLOADS)}")
    names = sorted(names, key=lambda n: (stored(n) or {}).get("date", ""))
    until, failed = time.monotonic() + options.seconds, 0
    while names and until - time.monotonic() > LAST_S:
        count = max(options.parallel, options.together)
        batch, names = names[:count], names[count:]
        if not options.ours_only:
            compiling = [started(["--child", "warm", "--case", n], options) for n in batch]
            end = time.monotonic() + min(WARM_S, 0.4 * (until - time.monotonic()))
            for process in compiling:
                waited(process, end - time.monotonic())
        with ThreadPoolExecutor(options.together) as threads:
            failed += sum(threads.map(lambda name: finished(name, options, until), batch))
    return failed


def finished(name: str, options: argparse.Namespace, until: float) -> bool:
    """Measure a case if time is left, and write its record and the table; returns whether it failed."""
    left = until - time.monotonic()
    if left < LAST_S:
        return False
    print(f"== {name} ({left:.0f} s left)", file=sys.stderr, flush=True)
    found = merged(stored(name), run_case(name, options, min(options.case_seconds, left)))
    if found.get("date"):
        (RESULTS / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")
        if (origin := origin_in(options.work, name)).is_dir() and "kept_from" not in found["variants"].get("ours", {}):
            shutil.copytree(origin, origin_in(RESULTS, name), dirs_exist_ok=True)
    with _writing:
        TABLE.write_text(render(all_stored()))
        print(line(found), flush=True)
    return "failed" in found or any("failed" in found["variants"].get(n, {}) for n in OURS)


def main() -> int:
    """Parse the command line, measure, and write the table; returns how many cases failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="NAME")
    parser.add_argument("--seconds", type=float, default=540.0, help="of the whole run")
    parser.add_argument("--case-seconds", type=float, default=CASE_S, help="of one workload")
    parser.add_argument("--budget", type=float, default=60.0, help="seconds of each optimization")
    parser.add_argument("--ours-only", action="store_true", help="keep compiled peers' times of an earlier run")
    parser.add_argument("--parallel", type=int, default=4, help="workloads whose peers compile side by side")
    parser.add_argument("--together", type=int, default=1, help="workloads optimized side by side (timing stays alone)")
    parser.add_argument("--store", type=Path, help="folder of cost stores, one per workload (default: new ones)")
    parser.add_argument("--work", type=Path, default=HERE.parent / "out/bench/gpu", help="folder for caches and parts")
    parser.add_argument("--results", type=Path, help="folder for records and the table (default: benchmarks/results)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: does everything run?")
    parser.add_argument("--small", action="store_true", help="small sizes")
    parser.add_argument("--render", action="store_true", help="only write the table again")
    parser.add_argument(
        "--explain", action="store_true", help="only explain stored results again, and replay the steps (no GPU)"
    )
    parser.add_argument("--child", choices=("time", "warm"), help=argparse.SUPPRESS)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--to", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options)
        return 0
    options.store = options.store or options.work / f"stores-{int(time.time())}"
    global RESULTS, TABLE
    if options.results:
        RESULTS, TABLE = options.results / "gpu", options.results / "gpu.md"
    elif options.small or options.device == "cpu":  # not for the table
        RESULTS, TABLE = options.work / "small", options.work / "small.md"
    if options.explain:
        from benchmarks.models.workloads import WORKLOADS

        explain_all(options.only or list(WORKLOADS))
    failed = 0 if options.render or options.explain else run(options)
    TABLE.write_text(render(all_stored()))
    return failed


if __name__ == "__main__":
    sys.exit(main())
