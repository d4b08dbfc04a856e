"""Are the forms found, or made for one benchmark? `python -m benchmarks.gpu_variants [--only NAME ...] [--slice I/N] [--render]`.

The variants of `variants.py` (other sizes, dtypes, spellings, programs), each in a process of its own: eager PyTorch, torch.compile
and our program, checked against float64 and replayed side by side as `gpu.py` does it. Each result is written at once to
results/raw/gpu_variants.json, results/gpu_variants.md is made from it. A run begins with what was measured longest ago and ends
in time; --slice takes every N-th variant from the I-th on, --merge takes newer records from files of other machines.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.gpu import Case, Record, how, recorded, share_the_gpu, started, waited
from benchmarks.variants import TINY, VARIANTS

HERE = Path(__file__).parent
RECORDS, TABLE = HERE / "results/raw/gpu_variants.json", HERE / "results/gpu_variants.md"
LAST_S = 25.0  # least seconds to begin a variant with
KEPT = (
    "us",
    "mad_us",
    "error",
    "failed",
    "seconds",
    "cold_s",
    "warm_s",
    "optimal",
    "stopped",
    "warnings",
    "estimated_us",
)
BEHIND = 0.97  # a ratio to the best peer below which a variant is counted as slower


def child(options: argparse.Namespace) -> None:
    """Measure one variant in this process."""
    faulthandler.dump_traceback_later(2.5 * options.budget + 10, repeat=True)  # says where what is stopped hung
    share_the_gpu()
    full = VARIANTS[options.child]
    work = TINY[options.child] if options.small else full
    case = Case(
        full, work, options.work / f"{full.name}.json", options.device, options.budget, options.store / full.name
    )
    case.record |= {
        "together": options.together,
        "dtype": str(full.dtype).removeprefix("torch."),
        "budget": options.budget,
    }
    case.write()
    with case.torch.no_grad():
        case.eager()
        case.peers(("default",))
    case.ours(("ours",))
    case.time()
    case.record["finished"] = True
    case.write()


def run_one(name: str, options: argparse.Namespace, seconds: float) -> Record:
    """One variant's record: what its process wrote, and how it ended."""
    target = options.work / f"{name}.json"
    target.unlink(missing_ok=True)
    arguments = ["--child", name, "--budget", str(options.budget), "--work", str(options.work), "--store", str(options.store),
                 "--together", str(options.together)]  # fmt: skip
    return recorded(name, target, waited(started(arguments, options, "benchmarks.gpu_variants"), seconds))


def shortened(record: Record) -> Record:
    """What the table and a later reader need of a record."""

    def part(found: Record) -> Record:
        kernels = [{k: x[k] for k in ("kernel", "us", "schedule")} for x in found.get("kernels", ())]
        return {k: found[k] for k in KEPT if k in found} | ({"kernels": kernels} if kernels else {})

    return {**record, "variants": {n: part(v) for n, v in record["variants"].items()}}


def stored() -> dict[str, Record]:
    """The last results by name."""
    return json.loads(RECORDS.read_text()) if RECORDS.exists() else {}


_writing = threading.Lock()


def keep(found: Sequence[Record]) -> None:
    """Write new records and the table."""
    with _writing:
        records = {**stored(), **{r["name"]: r for r in found}}
        RECORDS.parent.mkdir(parents=True, exist_ok=True)
        RECORDS.write_text(json.dumps(dict(sorted(records.items())), indent=1) + "\n")
        TABLE.write_text(render(records))


def run(options: argparse.Namespace) -> int:
    """Measure the stalest variants first until the time is up; how many failed."""
    options.work.mkdir(parents=True, exist_ok=True)
    if unknown := set(options.only or ()) - set(VARIANTS):
        raise SystemExit(f"no variants are called {sorted(unknown)}; there are {', '.join(VARIANTS)}")
    first, count = map(int, options.slice.split("/"))
    dates = {n: r.get("date", "") for n, r in stored().items()}
    names = sorted((options.only or list(VARIANTS))[first::count], key=lambda n: dates.get(n, ""))
    until = time.monotonic() + options.seconds

    def one(name: str) -> bool:
        left = until - time.monotonic()
        if left < LAST_S:
            return False
        print(f"== {name} ({left:.0f} s left)", file=sys.stderr, flush=True)
        found = run_one(name, options, min(options.case_seconds, left))
        keep([shortened(found)])
        print(line(found), flush=True)
        return "failed" in found or any("failed" in v for v in found["variants"].values())

    with ThreadPoolExecutor(options.together) as threads:
        return sum(threads.map(one, names))


# ---------------------------------------------------------------- the table
HEAD = ("variant", "dtype", "limit µs", "eager", "compile", "ours µs", "of limit", "× eager", "× best peer", "optimize s cold / warm",
        "error ours / eager", "our kernels")  # fmt: skip


def ratio(record: Record, peers: Sequence[str] = ("eager", "default")) -> float | None:
    """The fastest peer's time over ours."""
    variants = record["variants"]
    times = [variants[n]["us"] for n in peers if "us" in variants.get(n, {})]
    mine = variants.get("ours", {}).get("us")
    return min(times) / mine if mine and times else None


def line(record: Record) -> str:
    """One row of the table."""
    variants: dict[str, Any] = record["variants"]
    ours = variants.get("ours", {})
    us = [
        f"{v['us']:.1f}" if "us" in (v := variants.get(n, {})) else "failed" if "failed" in v else ""
        for n in ("eager", "default", "ours")
    ]
    limit = record.get("limit_us") or 0.0
    share = f"{100 * limit / ours['us']:.0f} %" if limit and "us" in ours else ""
    ratios = [f"{r:.2f}" if r else "" for r in (ratio(record, ("eager",)), ratio(record))]
    seconds = " / ".join(f"{ours[n]:.3g}" for n in ("cold_s", "warm_s") if n in ours)
    errors = " / ".join(f"{variants[n]['error']:.1e}" for n in ("ours", "eager") if "error" in variants.get(n, {}))
    cells = [record["name"], record.get("dtype", ""), f"{limit:.1f}" if limit else "", *us, share, *ratios, seconds, errors,
             (how(ours) or record.get("failed", "")).partition("\n")[0]]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def render(records: dict[str, Record]) -> str:
    """The table of these results."""
    found = [records[n] for n in VARIANTS if n in records]
    ratios = [r for record in found if (r := ratio(record)) is not None]
    behind = [f"{r['name']} ({x:.2f})" for r in found if (x := ratio(r)) is not None and x < BEHIND]
    failed = [
        f"{r['name']}: {n}: {v['failed'].partition(chr(10))[0]}"
        for r in found for n, v in r["variants"].items() if "failed" in v
    ]  # fmt: skip
    failed += [f"{r['name']}: {r['failed']}" for r in found if "failed" in r]
    summary = f"{len(ratios)} timed; slower than the best peer by more than 3 %: {', '.join(behind) or 'none'}."
    legend = (
        "µs a call: median of replays of CUDA graphs over rotating arguments, more than five times the L2 cache, in turn. Peers: eager and "
        "torch.compile's default mode. The limit is the larger of compulsory bytes over measured bandwidth and arithmetic as it is "
        "written over the measured rate (of bfloat16, or of float32 without TF32); blank where a call reads part of its weights; products of weights alone are folded into one by ours. Errors are relative to "
        "float64 (Frobenius). Peers' convolutions of float32 round to TF32, as Torch's defaults have it, which shows in their error; ours do not."
    )
    machines = dict.fromkeys(
        f"- {r['machine']}, {r['toolchain']}, budget {r.get('budget', 0):g} s" for r in found if "machine" in r
    )
    commits = ", ".join(sorted({str(r["commit"]) for r in found if "commit" in r}))
    return "\n".join([
        "# Variants of the GPU workloads", "", summary, "", f"| {' | '.join(HEAD)} |", "|" + "---|" * len(HEAD), *map(line, found),
        "", legend, "", *(f"- failed: {text}" for text in failed), *machines, f"- commits {commits}",
    ]) + "\n"  # fmt: skip


def main() -> int:
    """Parse, run, render; how many failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="NAME")
    parser.add_argument("--slice", default="0/1", metavar="I/N", help="every N-th variant from the I-th on")
    parser.add_argument("--seconds", type=float, default=540.0, help="of the whole run")
    parser.add_argument("--case-seconds", type=float, default=90.0, help="of one variant")
    parser.add_argument("--budget", type=float, default=20.0, help="seconds of each optimization")
    parser.add_argument("--together", type=int, default=2, help="variants side by side (timing stays alone)")
    parser.add_argument("--store", type=Path, help="folder of cost stores, one per variant (default: new ones)")
    parser.add_argument(
        "--work", type=Path, default=HERE.parent / "out/bench/gpu_variants", help="folder for caches and parts"
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: does everything run?")
    parser.add_argument("--small", action="store_true", help="small sizes")
    parser.add_argument("--render", action="store_true", help="only write the table again")
    parser.add_argument(
        "--merge", nargs="+", type=Path, metavar="JSON", help="only take newer records from these files"
    )
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.store = options.store or options.work / f"stores-{int(time.time())}"
    if options.child:
        child(options)
        return 0
    if options.small or options.device == "cpu":  # not for the table
        global RECORDS, TABLE
        RECORDS, TABLE = options.work / "small.json", options.work / "small.md"
    if options.merge:
        old = stored()
        newer = [
            r
            for p in options.merge
            for r in json.loads(p.read_text()).values()
            if r.get("date", "") > old.get(r["name"], {}).get("date", "")
        ]
        keep(sorted(newer, key=lambda r: r["date"]))
        return 0
    if options.render:
        keep([])
        return 0
    return run(options)


if __name__ == "__main__":
    sys.exit(main())
