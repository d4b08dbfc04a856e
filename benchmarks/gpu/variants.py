"""Variants of the workloads on a GPU, to show that the rewrites found are not specific to one benchmark: `python -m
benchmarks.gpu.variants [--only NAME ...] [--slice I/N] [--render]`.

The variants of `variants.py` and `further.py` (other sizes, dtypes, ways to write them, programs), each in a process of
its own: eager PyTorch, torch.compile and our program, checked against float64 and replayed in turn as in `gpu.py`. Each
result is written at once to results/raw/gpu_variants.json; results/gpu_variants.md is made from it. A run begins with
the variants measured longest ago and ends after `--seconds`; `--slice` takes every N-th variant from the I-th on,
`--merge` takes newer records from files of other machines.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.gpu.case import Case, Record
from benchmarks.gpu.suite import Suite
from benchmarks.gpu.table import how
from benchmarks.models import further, recurrent  # noqa: F401  (their variants register themselves)
from benchmarks.models.workload_variants import TINY, VARIANTS

KEPT = (
    "us",
    "mad_us",
    "error",
    "failed",
    "seconds",
    "stages",
    "memory_said",
    "cold_s",
    "warm_s",
    "optimal",
    "stopped",
    "warnings",
    "estimated_us",
    "memory",
    "host",
)
BEHIND = 0.97  # a ratio to the best peer below which a variant is counted as slower


def measured(case: Case) -> None:
    """Measure all variants of one program."""
    with case.torch.no_grad():
        case.eager()
        case.peers(("default",))
    case.ours(("ours",))
    case.time()


def shortened(record: Record) -> Record:
    """The fields of a record that the table and later readers need."""

    def part(found: Record) -> Record:
        kernels = [{k: x[k] for k in ("kernel", "us", "schedule")} for x in found.get("kernels", ())]
        return {k: found[k] for k in KEPT if k in found} | ({"kernels": kernels} if kernels else {})

    return {**record, "variants": {n: part(v) for n, v in record["variants"].items()}}


# ---------------------------------------------------------------- the table
HEAD = ("variant", "dtype", "limit µs", "eager", "compile", "ours µs", "of limit", "× eager", "× best peer", "optimize s cold / warm",
        "error ours / eager", "our kernels")  # fmt: skip


def ratio(record: Record, peers: Sequence[str] = ("eager", "default")) -> float | None:
    """The fastest peer's time divided by ours; None if either is missing."""
    variants = record["variants"]
    times = [variants[n]["us"] for n in peers if "us" in variants.get(n, {})]
    mine = variants.get("ours", {}).get("us")
    return min(times) / mine if mine and times else None


def line(record: Record) -> str:
    """A record as one row of the table."""
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
    loose = f", tolerance {record['tolerance']:g}" if record.get("tolerance") is not None else ""
    cells = [record["name"], record.get("dtype", "") + loose, f"{limit:.1f}" if limit else "", *us, share, *ratios, seconds, errors,
             (how(ours) or record.get("failed", "")).partition("\n")[0]]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def render(records: dict[str, Record]) -> str:
    """The table of these records as Markdown."""
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
        "written over the measured rate (of bfloat16, of float32 without TF32, or half the first where a tolerance is given); blank where a call reads part of its weights; products of weights alone are folded into one by ours. Errors are relative to "
        "float64 (Frobenius). Rows of float32 without a tolerance: nobody rounds to TF32 (peers run with `allow_tf32` off for products and "
        "convolutions, ours does not unasked). Rows with one: it is what ours was given, and peers run with `allow_tf32` on for both."
        " Warm seconds near the cold ones: at 74efc62 the plan of the first search was not remembered in some rows (mended since)."
    )
    machines = dict.fromkeys(
        f"- {r['machine']}, {r['toolchain']}, budget {r.get('budget', 0):g} s" for r in found if "machine" in r
    )
    commits = ", ".join(sorted({str(r["commit"]) for r in found if "commit" in r}))
    return "\n".join([
        "# Variants of the GPU workloads", "", summary, "", f"| {' | '.join(HEAD)} |", "|" + "---|" * len(HEAD), *map(line, found),
        "", legend, "", *(f"- failed: {text}" for text in failed), *machines, f"- commits {commits}",
    ]) + "\n"  # fmt: skip


SUITE = Suite("gpu_variants", "variants", VARIANTS, TINY, Case, measured, shortened, line, render)

if __name__ == "__main__":
    sys.exit(SUITE.main(__doc__))
