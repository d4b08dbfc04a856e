"""Measures the figures and writes the table: `python -m benchmarks.run [--only NAME ...] [--quick] [--budget S]`.

Each figure runs in a process of its own (fresh memory; a crash or a hang costs that figure only). Its result is
written at once to results/raw/NAME.json; `--stale-first` begins with the figures measured longest ago, so that a run
that is cut short continues with the rest next time. results/cpu.md is made from all raw results, old and new.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RAW = HERE / "results/raw"
TABLE = HERE / "results/cpu.md"
COMMAND = "python -m benchmarks.run"

#: figure -> (its module, most seconds it may take). The order is that of the table.
FIGURES = {
    "gemma18": ("saturation.gemma18", 900),
    "gemma_growth": ("saturation.gemma_growth", 900),
    "egglog_load": ("saturation.egglog_load", 120),
    "memory": ("cpu.memory", 900),
    "overhead": ("cpu.overhead", 120),
    "startup": ("cpu.startup", 120),
    "extraction": ("extraction.public_egraphs", 300),
    "field": ("cpu.field", 1200),
    "peers": ("cpu.peers", 2400),
    "c_kernels": ("cpu.c_kernels", 120),
    "chains": ("saturation.chains", 300),
    "cutting": ("saturation.cutting", 900),
    "proved": ("extraction.proved", 900),
    "ranking": ("extraction.ranking", 1800),
    "anytime": ("saturation.anytime", 3600),
}


def machine() -> str:
    """Processor, cores and memory of this machine, as text."""
    name = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
        flags = next((line for line in lines if line.startswith("flags")), "")
        wide = [f for f in ("amx_tile", "avx512_bf16", "avx512_vnni", "avx512f", "avx2") if f" {f}" in flags]
        name += f" ({wide[0]})" if wide else ""
    except (OSError, StopIteration):
        pass
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{name}, {cores} cores"


def commit() -> str:
    """Hash of the measured commit, with a + if files were changed since."""
    git = lambda *a: subprocess.run(["git", *a], capture_output=True, text=True, cwd=HERE).stdout.strip()
    changed = git("status", "--porcelain", "--untracked-files=no", "--", ":(top,exclude)benchmarks/results")
    return (git("rev-parse", "--short", "HEAD") or "unknown") + ("+" if changed else "")


def measure(name: str, limit: float) -> dict[str, Any]:
    """A figure's result from a process of its own; a failure or timeout is a result too."""
    target = RAW / f".{name}.part"
    target.unlink(missing_ok=True)
    start = time.monotonic()
    child = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.run", "--child", name, "--to", str(target)], cwd=HERE.parent,
        start_new_session=True, env={**os.environ, "OPENBLAS_THREAD_TIMEOUT": "12"},
    )  # fmt: skip
    try:
        code: int | str = child.wait(limit)
    except subprocess.TimeoutExpired:
        code = f"nothing within {limit:g} s"
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    found: dict[str, Any] = {"rows": [], "failed": f"the process ended with {code}"}
    if target.exists():
        found = json.loads(target.read_text())
        target.unlink()
    return found | {"seconds": round(time.monotonic() - start, 1)}


def child(name: str, target: Path) -> None:
    """Run one figure in this process."""
    import traceback

    try:
        found = importlib.import_module(f"benchmarks.{FIGURES[name][0]}").main()
    except Exception as problem:
        traceback.print_exc()
        found = {"rows": [], "failed": f"{type(problem).__name__}: {problem}"[:500]}
    target.write_text(json.dumps(found, default=_plain))


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else str(value)


def stored(name: str) -> dict[str, Any] | None:
    """The stored result of a figure; None if there is none."""
    path = RAW / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def render() -> str:
    """The table of all stored results as Markdown."""
    lines = ["# Figures on the CPU", "", "| figure | required | measured | |", "|---|---|---|---|"]
    notes = ["", "| measured by | date | machine | commit | took | load before |", "|---|---|---|---|---|---|"]
    for name in FIGURES:
        found = stored(name)
        if found is None:
            lines.append(f"| {name} | | not measured | |")
            continue
        rows = found["rows"] or [{"figure": name, "required": "", "measured": "", "ok": False}]
        for r in rows:
            mark = {True: "yes", False: "**no**", None: ""}[r["ok"]]
            lines.append(f"| {r['figure']} | {r['required']} | {r['measured']} | {mark} |")
        if "failed" in found:
            lines.append(f"| {name} | | failed: {found['failed'].replace('|', '/')[:200]} | **no** |")
        quick = " (quick)" if found["quick"] else ""
        notes.append(
            f"| `{COMMAND} --only {name}`{quick} | {found['date']} | {found['machine']} | {found['commit']} "
            f"| {found['seconds']} s | {found['load']:.1f} |"
        )
    legend = (
        "\nTimes are medians; ± is the median absolute deviation. The load is the number of processes that wanted to run "
        "when a figure's turn came: above 0.5, others disturbed it. Everything measured lies in `raw/`."
    )
    return "\n".join([*lines, *notes, legend]) + "\n"


def main() -> int:
    """Measure figures, write the results and the table; returns how many figures failed to run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(FIGURES), default=list(FIGURES), metavar="NAME")
    parser.add_argument("--quick", action="store_true", help="small sizes, few rounds: does everything run?")
    parser.add_argument("--budget", type=float, default=60.0, help="seconds of each optimization")
    parser.add_argument("--stale-first", action="store_true", help="begin with what was measured longest ago")
    parser.add_argument("--render", action="store_true", help="only write the table again")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--to", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child, options.to)
        return 0
    RAW.mkdir(parents=True, exist_ok=True)
    os.environ["BENCH_QUICK"] = "1" if options.quick else "0"
    os.environ["BENCH_BUDGET"] = str(options.budget)
    os.environ.setdefault("TENSOR_GRAPHS_HOME", str(HERE.parent / "out/bench/home"))
    names = [] if options.render else list(options.only)
    if options.stale_first:
        names.sort(key=lambda n: (stored(n) or {}).get("date", ""))
    failed = 0
    for name in names:
        print(f"== {name}", file=sys.stderr, flush=True)
        load = os.getloadavg()[0]
        found = measure(name, FIGURES[name][1])
        found |= {
            "name": name, "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M"), "machine": machine(),
            "commit": commit(), "quick": options.quick, "budget": options.budget, "load": load,
        }  # fmt: skip
        failed += "failed" in found
        (RAW / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")
        TABLE.write_text(render())
        for r in found["rows"]:
            print(f"{r['figure']}: {r['measured']} (required: {r['required']}; {r['ok']})", flush=True)
        if "failed" in found:
            print(f"{name} failed: {found['failed']}", flush=True)
    TABLE.write_text(render())
    print(f"wrote {TABLE.relative_to(HERE.parent)}", file=sys.stderr)
    return failed


if __name__ == "__main__":
    sys.exit(main())
