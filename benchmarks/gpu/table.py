"""The table of the GPU workloads as Markdown, from their records (`case.Case`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.gpu.case import Record

PEERS = ("eager", "default", "max-autotune", "xla")
HEAD = ("workload", "limit µs", "eager", "compile", "max-autotune", "XLA", "best peer seen before", "ours µs", "of limit", "× best peer", "generated only",
        "wanted", "rested: best peer / ours", "optimize s cold / warm", "error ours / eager", "our kernels")  # fmt: skip


def best_peer(record: Record) -> tuple[str, float] | None:
    """(name, µs) of the fastest peer: of those timed in this record, and of the best time known from before."""
    from benchmarks.models.workloads import WORKLOADS

    times = {n: record["variants"][n]["us"] for n in PEERS if "us" in record["variants"].get(n, {})}
    if WORKLOADS[record["name"]].seen:
        times["seen"] = WORKLOADS[record["name"]].seen
    return min(times.items(), key=lambda item: item[1]) if times else None


def how(found: Record) -> str:
    """The kernels of a plan as text, with counts; the failure if there is no plan."""
    if "kernels" not in found:
        return str(found.get("failed", ""))[:80]
    names: dict[str, int] = {}
    for k in found["kernels"]:
        names[k["kernel"]] = names.get(k["kernel"], 0) + 1
    return ", ".join(f"{n} x{count}" if count > 1 else n for n, count in names.items())


def how_found(record: Record) -> str:
    """How a workload's plan was found, as a line of Markdown.

    The rules applied, and for each kernel whether it is a library kernel, or generated from which ops by which
    transformations of the kernel IR.
    """
    ours = record["variants"].get("ours", {})
    kernels = [k for k in ours.get("kernels", ()) if "generated" in k]
    if not kernels:
        return ""
    texts = [
        f"`{k['kernel']}`: " + (", ".join(filter(None, [
            "generated", f"of {', '.join(k['named'])}" if k["named"] else "of single operations", *k["transformations"]
        ])) if k["generated"] else "library")
        for k in kernels
    ]  # fmt: skip
    rules, steps = ", ".join(ours.get("rules", ())) or "none", ours.get("steps", {})
    if steps:
        count = f"{steps['count']} step{'s' * (steps['count'] != 1)}, " if "count" in steps else ""
        whose = ", of a plan of the same kernels, found again" if ours.get("found_again") else ""
        rules += f" ({count}{steps['verdict']}{whose})"
    rounded = ours.get("rounded", ())
    texts += [f"rounded to {d} where it is stored: {rounded.count(d)} of its values" for d in dict.fromkeys(rounded)]
    return f"- {record['name']}: rules {rules}; {'; '.join(dict.fromkeys(texts))}"


def line(record: Record) -> str:
    """A record as one row of the table."""
    from benchmarks.models.workloads import WORKLOADS

    work, variants = WORKLOADS[record["name"]], record["variants"]

    def us(name: str) -> str:
        found = variants.get(name, {})
        if "us" not in found:
            return "failed" if "failed" in found else ""
        return f"{found['us']:.1f}" + ("†" if "kept_from" in found else "")

    ours, peer, limit = variants.get("ours", {}), best_peer(record), record.get("limit_us")
    mine = ours.get("us")
    share = f"{100 * limit / mine:.0f} %" if mine and limit else ""
    ratio = f"{peer[1] / mine:.2f}{'‡' if peer[0] == 'seen' else ''}" if mine and peer else ""
    seconds = " / ".join(f"{ours[n]:.3g}" for n in ("cold_s", "warm_s") if n in ours)
    errors = " / ".join(f"{variants[n]['error']:.1e}" for n in ("ours", "eager") if "error" in variants.get(n, {}))
    wanted = f"{work.wanted:g}" if work.wanted else ""
    mark = reached(ours, work.wanted) if mine and work.wanted else ""
    seen = f"{work.seen:g}" if work.seen else ""
    cells = [record["name"], f"{limit:.1f}" if limit else "", *map(us, PEERS), seen, us("ours"), share, ratio, us("generated"),
             wanted + mark, rested(variants), seconds, errors, how(ours)]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def reached(ours: Mapping[str, Any], wanted: float) -> str:
    """Text that says whether our time is the wanted one.

    If the driver limits the clock for power only without pauses, both states are named: the wanted time may be met
    after pauses and missed at the power limit.
    """
    if ours["us"] <= wanted:
        return " yes"
    if ours.get("capped", 0.0) > 0.5 > ours.get("rested_capped", 1.0) and ours["rested_us"] <= wanted:
        return " yes rested, **no** at the power limit"
    return " **no**"


def rested(variants: Mapping[str, Record]) -> str:
    """Times in µs after a pause, as text: the fastest peer of this run / ours; "" if either is missing."""
    peers = [x["rested_us"] for n in PEERS if "rested_us" in (x := variants.get(n, {})) and "kept_from" not in x]
    mine = variants.get("ours", {}).get("rested_us")
    return f"{min(peers):.1f} / {mine:.1f}" if peers and mine else ""


def render(found: Sequence[Record]) -> str:
    """The table of some records as Markdown."""
    rows = [f"| {' | '.join(HEAD)} |", "|" + "---|" * len(HEAD), *map(line, found)]
    notes = [
        _machine_note([r for r in found if r.get("machine") == m])
        for m in dict.fromkeys(r["machine"] for r in found if "machine" in r)
    ]
    legend = (
        "µs a call: median of replays of CUDA graphs over rotating arguments, more than five times the L2 cache, all variants in "
        "turn; rested: the same after a pause of 0.1 s before each replay (products without one reach the chip's power limit, and its "
        "clock sinks). Optimization seconds leave out timing the finished program. XLA: wall clock of one program over many argument sets. The limit is the larger of compulsory bytes over "
        "measured bandwidth and arithmetic over the measured rate. Errors are relative to float64 (Frobenius). † kept from an "
        "earlier run (until 40ad811 replays of what the host launches slowly were short, ours and theirs: some 0.5 µs a call more). "
        '"Best peer seen before": the best of the same peers on this kind of machine the day before, with torch 2.11; '
        "‡ the ratio is to that. Products of weights alone (the chain's, the shared factor's, LoRA's) may be folded when weights are bound."
    )
    notes += [f"- {r['name']}: {r['note']}" for r in found if r.get("note")]
    origins = [text for r in found if (text := how_found(r))]
    if origins:
        notes += ["", "## How each was found", "", *origins]
    return "\n".join(["# Workloads on a GPU", "", *rows, "", legend, "", *notes]) + "\n"


def _machine_note(records: Sequence[Record]) -> str:
    """Line of Markdown on a machine: its rates as the cases found them, dates and commits."""

    def between(key: str, unit: float, digits: int) -> str:
        values = [r[key] / unit for r in records]
        return f"{min(values):.{digits}f}-{max(values):.{digits}f}"

    r = records[0]
    dates, commits = (", ".join(sorted({str(x[k])[:10] for x in records})) for k in ("date", "commit"))
    return (
        f"- {r['machine']}, {r['driver']}, {r['toolchain']}: copy {between('copy_bytes_per_us', 1e6, 2)} TB/s, "
        f"read {between('read_bytes_per_us', 1e6, 2)} TB/s, {between('flops_per_us', 1e6, 0)} bf16 TFLOP/s, "
        f"{between('launch_us', 1, 2)} µs a launch ({dates}; commits {commits})"
    )
