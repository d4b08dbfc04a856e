"""Record of `tg.compile` over architectures: `python -m benchmarks.torch_compile.architectures --results FILE [names]`,
`--table FILE`.

Each architecture runs in a process of its own, with limits of time and memory; rows are appended to FILE, and
architectures that are in it are skipped. A row is right if all results have eager's types and an error against eager in
float64 that rounding explains: at most eight times eager's own plus 1e-5, relative to the norm (where eager has no
float64 form: against eager, at most 1e-5); integers may differ in ties only. Programs run for this comparison even
where they are slower; the column "would run" is the decision from measured times (on this machine, small sizes). Then
the architecture is compiled again as users do, called until `tg.compile` has chosen, and calls are timed beside the
module's own: CPU time of the one thread, calls in turn, inputs at other addresses than before; "time" is the ratio of
the lower quartiles, less than 1 if faster.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch
from torch.utils import _pytree

import tensor_graphs as tg
from tensor_graphs.torch_compile import judge

from ..models.torch_architectures import Make, by_hand
from ..models.torch_more_transformers import more_transformers
from ..models.torch_transformers import transformers
from ..models.torch_unusual import unusual

SECONDS, MEMORY = 240, 9 << 30  # limits of an architecture: wall clock, address space
OPTIONS = {"wait": True, "budget": 2, "effort": 0, "measure": False, "verify": True, "cache": False}
DECIDING = 40  # calls until whole calls are decided
FEWEST, TIMED_S = 9, 3.0  # timed calls of each form at least, and seconds of them
NOISE = 0.03  # share by which calls may be slower than the module's own: no difference


def architectures() -> dict[str, Make]:
    """Name -> (builder of the module, builder of its operands), with those of the package transformers if it can be
    imported.
    """
    try:
        import transformers as _  # noqa: F401
    except ImportError:
        return {**by_hand(), **unusual()}
    return {**by_hand(), **unusual(), **transformers(), **more_transformers()}


class Times:
    """Replacement of `judge.timed` that records the measured times and returns times by which programs win."""

    def __init__(self) -> None:
        self.faster: list[bool] = []
        self._timed: Callable[..., dict[str, list[float]]] = judge.timed

    def __call__(self, *args: Any) -> dict[str, list[float]]:
        """Times by which programs win; the decision from the real times is in `faster`."""
        found = self._timed(*args)
        self.faster.append(median(found["program"]) < (1 - judge.NOISE) * median(found["eager"]))
        return {"eager": [2.0] * 5, "program": [1.0] * 5}


def error(found: Any, exact: Any) -> float:
    """Largest relative error of the floating-point results; infinite where types differ, or more than 1 % of the
    integers."""
    worst = 0.0
    (ours, one), (theirs, other) = _pytree.tree_flatten(found), _pytree.tree_flatten(exact)
    if one != other:
        return float("inf")
    for x, y in zip(ours, theirs):
        if not isinstance(y, torch.Tensor):
            continue
        if x.shape != y.shape or x.is_floating_point() != y.is_floating_point():
            return float("inf")
        if not y.is_floating_point():
            worst = max(worst, float("inf") if y.numel() and float((x != y).double().mean()) > 0.01 else 0.0)
        elif not bool((x.isfinite() == y.isfinite()).all()):
            return float("inf")
        else:
            a, b = (z.detach().double().nan_to_num(0.0, 0.0, 0.0) for z in (x, y))
            worst = max(worst, float((a - b).norm() / b.norm().clamp(min=1e-30)) if y.numel() else 0.0)
    return worst


def recorded(name: str, make: Make, **options: Any) -> dict[str, Any]:
    """The row of an architecture."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    before = len(tg.torch_compile.reports())
    torch.manual_seed(0)
    module = make[0]().eval()
    calls = [make[1]() for _ in range(2)]
    times = judge.timed = Times()
    begin, worst, own, reference = time.perf_counter(), 0.0, 0.0, "float64"
    try:
        with torch.no_grad():
            compiled = tg.compile(module, **{**OPTIONS, **options})
            found = [compiled(*args) for args in (calls[0], *calls)][1:]
            eager = [module(*args) for args in calls]
            try:
                wide = module.double()
                exact = [wide(*(x.double() if x.is_floating_point() else x for x in args)) for args in calls]
            except RuntimeError as failure:  # an operator without float64, a constant of float32
                exact, reference = eager, f"eager itself; in float64: {str(failure)[:80]}"
            if not all(error(theirs, right) < float("inf") for theirs, right in zip(eager, exact)):
                exact, reference = eager, "eager itself; integers or infinities in float64 are others"
            for right, ours, theirs in zip(exact, found, eager):
                worst, own = max(worst, error(ours, right)), max(own, error(theirs, right))
    finally:
        judge.timed = times._timed
    reports = tg.torch_compile.reports()[before:]
    traced = [x for r in reports for x in r.traced]
    reasons = Counter(
        {f"{i.operator}: {i.reason}": i.count for x in traced for i in x.islands}
        | {p.state: 1 for x in traced for p in x.parts if not p.state.startswith("program")}
        | {r.why: 1 for r in reports if not r.traced}
    )
    return {
        "name": name, "reference": reference, "right": worst <= 8 * own + 1e-5 < float("inf"), "error": worst, "eager_error": own, "graphs": len(reports),
        "breaks": sum(torch._dynamo.utils.counters["graph_break"].values()), "operators": sum(x.nodes for x in traced),
        "in_programs": sum(p.nodes for x in traced for p in x.parts if p.state.startswith("program")),
        "programs": sum(p.state.startswith("program") for x in traced for p in x.parts),
        "faster": f"{sum(times.faster)} of {len(times.faster)}", "seconds": round(time.perf_counter() - begin, 1),
        "reasons": [w for w, _ in reasons.most_common(6)], "warnings": [w for r in reports for w in r.warnings][:4],
    }  # fmt: skip


def whole_calls(make: Make, **options: Any) -> dict[str, Any]:
    """Times of calls under `tg.compile`, after its decision, beside calls of the module.

    `time_ratio`, `eager_us` (CPU time), and `calls` (which form it chose).
    """
    torch._dynamo.reset()
    torch.manual_seed(0)
    module = make[0]().eval()
    given = [make[1]() for _ in range(3)]
    compiled = tg.compile(module, **{**OPTIONS, **options})
    taken: tuple[list[int], list[int]] = ([], [])
    with torch.no_grad():
        for i in range(DECIDING):
            compiled(*given[i % 3])
        begin = time.perf_counter()
        while len(taken[0]) < FEWEST or time.perf_counter() - begin < TIMED_S:
            turn, args = len(taken[0]) % 2, given[len(taken[0]) % 3]
            for i in (turn, 1 - turn):
                start = time.thread_time_ns()
                (module, compiled)[i](*args)
                taken[i].append(time.thread_time_ns() - start)
    own, ours = (quantiles(ns, n=4)[0] / 1000 for ns in taken)
    report = tg.torch_compile.last_report()
    return {
        "time_ratio": round(ours / own, 3),
        "eager_us": round(own, 1),
        "calls": "" if report is None else report.calls,
    }


def whole_row(name: str, make: Make, **options: Any) -> dict[str, Any]:
    """The row of an architecture with the times of its calls."""
    return recorded(name, make, **options) | whole_calls(make, **options)


def in_child(name: str, work: Callable[[], dict[str, Any]], seconds: float) -> dict[str, Any]:
    """The row that `work` returns, computed in a forked process with limits of memory and `seconds`."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        os.close(read)
        try:
            row = work()
        except BaseException as failure:
            last = traceback.format_exc(limit=-3)
            row = {
                "name": name,
                "right": False,
                "reasons": [f"{type(failure).__name__}: {str(failure)[:300]}"],
                "trace": last[-1500:],
            }
        with os.fdopen(write, "w") as file:
            json.dump(row, file)
        os._exit(0)
    os.close(write)
    until, text = time.monotonic() + seconds, b""
    os.set_blocking(read, False)
    while True:
        ended = os.waitpid(child, os.WNOHANG)[0] == child
        try:
            while piece := os.read(read, 1 << 16):
                text += piece
        except BlockingIOError:
            pass
        if ended or time.monotonic() > until:
            break
        time.sleep(0.05)
    os.close(read)
    if not ended:
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return {"name": name, "right": False, "reasons": [f"not ended after {seconds:g} s"]}
    return json.loads(text) if text else {"name": name, "right": False, "reasons": ["the process died"]}


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as Markdown."""
    right = sum(r["right"] for r in rows)
    operators, inside = (sum(r.get(k, 0) for r in rows) for k in ("operators", "in_programs"))
    whole = sum(r.get("operators", 0) == r.get("in_programs", -1) for r in rows)
    ratios = sorted(r["time_ratio"] for r in rows if "time_ratio" in r)
    slower = [f"{r['name']} {r['time_ratio']:.2f}" for r in rows if r.get("time_ratio", 0) > 1 + NOISE]
    programs = sum(_chosen(r) == "programs" for r in rows)
    breaks = sum(r.get("breaks", 0) > 0 for r in rows)
    lines = [
        "# Architectures under tg.compile", "", __doc__.split("\n\n", 1)[1].strip(), "",
        f"{len(rows)} architectures, {right} right ({100 * right / max(len(rows), 1):.1f} %). {inside} of {operators} operators are in "
        f"programs ({100 * inside / max(operators, 1):.1f} %); of {whole} architectures all are. {breaks} have graph breaks.", "",
        f"Calls of {len(ratios)} architectures were timed: the median takes {median(ratios or [0]):.2f} of eager's time ({programs} run programs), {len(slower)} take more "
        f"than {1 + NOISE:.2f} of it{': ' if slower else ''}{', '.join(slower)}." if ratios else "Whole calls were not timed (`--only-results`).", "",
        "| architecture | right | operators | in programs | graphs | graph breaks | error against float64 | eager's | would run | calls go to | time | eager, µs | not in programs |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for r in rows:
        why = (
            "; ".join([*r.get("reasons", []), *r.get("warnings", []), *_compared(r)])
            .replace("|", "/")
            .replace("\n", " ")[:200]
        )
        cells = [r["name"], "yes" if r["right"] else "**no**", r.get("operators", ""), r.get("in_programs", ""), r.get("graphs", ""),
                 r.get("breaks", ""), *(f"{r[k]:.1e}" if k in r else "" for k in ("error", "eager_error")), r.get("faster", ""),
                 _chosen(r), r.get("time_ratio", ""), r.get("eager_us", ""), why]  # fmt: skip
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


def _chosen(row: dict[str, Any]) -> str:
    """What whole calls of a row run: programs or the module itself."""
    message = str(row.get("calls", ""))
    return "programs" if message.startswith("go to the compiled") else "module" if "time_ratio" in row else ""


def _compared(row: dict[str, Any]) -> list[str]:
    """The reference of a row's errors, if it is not eager in float64."""
    return [] if row.get("reference", "float64") == "float64" else [f"compared with {row['reference']}"]


def main() -> None:
    """Run the architectures named on the command line, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="architectures; all if none is given")
    parser.add_argument("--results", required=True, help="JSON lines")
    parser.add_argument("--table", help="write the table of FILE here, without running anything")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="limit of each architecture")
    parser.add_argument("--only-results", action="store_true", help="without the times of whole calls")
    parser.add_argument("--budget", type=float, default=OPTIONS["budget"], help="seconds for each program")
    given = parser.parse_args()
    path = Path(given.results)
    rows = {r["name"]: r for r in map(json.loads, path.read_text().splitlines())} if path.exists() else {}
    if given.table:
        Path(given.table).write_text(table(list(rows.values())))
        sys.exit(not all(r["right"] for r in rows.values()))
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    known = architectures()
    for name in given.names or [n for n in known if n not in rows]:
        work = partial(recorded if given.only_results else whole_row, name, known[name], budget=given.budget)
        row = in_child(name, work, given.seconds)
        with path.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(row["name"], "right" if row["right"] else "WRONG", row.get("in_programs"), "of", row.get("operators"),
              f"{row.get('seconds')} s", *row["reasons"][:2], flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
