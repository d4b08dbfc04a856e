"""Anytime curves: plan cost against beam, slack, rounds, e-nodes, seconds and effort of saturation, each varied alone.

Two questions: does a larger limit ever give a more expensive plan, and are the defaults the least limits that give the
best cost? Prices are the stated roofline, so costs are the same on every machine; only limits of time (the sweep over
seconds, proofs) depend on it. Every figure is a percentage above the cheapest plan that any setting found for that
graph.

    python -m benchmarks.saturation.anytime [--quick] [--seconds S] [--fresh]

writes results/anytime.md: 20 to 30 minutes on a quiet machine of two cores. Each point is stored when it is measured,
in results/raw/anytime_points.json: a run ends after about `--seconds`, and the same command continues. Points of other
sources of the search are measured again; `--fresh` measures all again. `--quick`: one graph, two points a sweep.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from itertools import pairwise
from typing import Any

from benchmarks.models import zoo
from benchmarks.models.taso import load_field_json
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.saturate.saturate import BEAM, SLACK_LAUNCHES, Limits
from tensor_graphs.models.load import load

from ..common import QUICK, ROOT, data, gemma, row
from .stages import run, stated_prices

DEFAULT = Limits()
LONG = 20.0  # seconds where time is not what is varied
SOLVE = 10.0  # seconds of one extraction: above it costs are the solver's, not the e-graph's
RESULTS = ROOT / "benchmarks/results"
POINTS = RESULTS / "raw/anytime_points.json"
SEARCH = ("egraph", "extract", "rules", "backends", "models")  # what a point depends on
KNEE = 0.5  # % above the best plan that the default may be

Setting = tuple[Limits, int]  # limits and effort
Points = dict[str, dict[str, Any]]


def _sweep(name: str, values: tuple[Any, ...]) -> dict[str, Setting]:
    return {str(v): (Limits(**{"seconds": LONG, name: v}), 1) for v in values}


#: limit -> label -> setting; the last of a sweep is the most.
SWEEPS: dict[str, dict[str, Setting]] = {
    "beam": {**_sweep("beam", (1, 2, 4, 8, 16)), "none": (Limits(beam=0, seconds=LONG), 1)},
    "slack": _sweep("slack", (0, 1, 2, 3, 5, 10)),
    "rounds": _sweep("iterations", (0, 1, 2, 3, 4, 6, 8, 10, 14)),
    "e-nodes": _sweep("nodes", (100, 300, 1000, 3000, 20000)),
    "seconds": _sweep("seconds", (0.1, 0.3, 1.0, 5.0)),
    "effort": {str(n): (Limits(seconds=LONG), n) for n in (0, 1, 2, 3)},
}
#: The label of the default in each sweep.
DEFAULTS = {
    "beam": str(BEAM), "slack": str(SLACK_LAUNCHES), "rounds": str(DEFAULT.iterations),
    "e-nodes": str(DEFAULT.nodes), "seconds": str(DEFAULT.seconds), "effort": "1",
}  # fmt: skip


def graphs() -> dict[str, Callable[[], Graph]]:
    """Builders of the graphs, by title: blocks of eight kinds of models."""
    return {
        "NasRNN, 2 steps": lambda: zoo.nasrnn(steps=2),
        "BERT layer": lambda: load_field_json(data("models/bert_tensat.json")),
        "SqueezeNet": lambda: load_field_json(data("models/squeezenet.json")),
        "ResNet block": lambda: zoo.resnet50(image=56, blocks=(1,), classes=16),
        "Gemma layer": lambda: load(gemma(1, vocab=1024)),
        "GPT layer": lambda: zoo.transformer(1, hidden=256, heads=4, tokens=64),
        "U-Net, 1 level": lambda: zoo.unet(levels=1),
        "DiT block": lambda: zoo.dit_block(),
    }


def sweeps(quick: bool) -> dict[str, dict[str, Setting]]:
    """Sweep -> label -> setting. `quick`: only the lowest and the default setting of each sweep."""
    if not quick:
        return SWEEPS
    return {
        s: {k: v for k, v in points.items() if k in (DEFAULTS[s], next(iter(points)))} for s, points in SWEEPS.items()
    }


# ---------------------------------------------------------------- points, kept as they are measured
def sources() -> str:
    """Git hashes of the sources of the search, with a + if they were changed since the last commit."""
    git = lambda *a: subprocess.run(["git", *a], capture_output=True, text=True, cwd=ROOT, check=False).stdout
    changed = git("status", "--porcelain", "--untracked-files=no", "--", *SEARCH).strip()
    return " ".join(git("rev-parse", *(f"HEAD:{part}" for part in SEARCH)).split()) + ("+" if changed else "")


def kept() -> Points:
    """Points that an earlier run measured with the present sources, by `named`; empty if the sources differ."""
    try:
        found = json.loads(POINTS.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return dict(found["points"]) if found.get("sources") == sources() else {}


def named(title: str, setting: Setting) -> str:
    """Key of a graph at a setting; equal settings of several sweeps have one key."""
    limits, effort = setting
    return json.dumps([title, asdict(limits) | {"beam": BEAM if limits.beam is None else limits.beam}, effort])


def wanted(quick: bool) -> Iterator[tuple[str, Callable[[], Graph], Setting]]:
    """(title, builder, setting) of all points, graph by graph, each once."""
    for title, build in list(graphs().items())[: 1 if quick else None]:
        for setting in {named(title, s): s for points in sweeps(quick).values() for s in points.values()}.values():
            yield title, build, setting


def measure(quick: bool, seconds: float, points: Points) -> bool:
    """Measure missing points for about `seconds` and write them; returns whether all points are there."""
    pricer, began, of = stated_prices(), time.monotonic(), sources()
    todo = [(t, b, s) for t, b, s in wanted(quick) if named(t, s) not in points]
    built: dict[str, Graph] = {}
    for n, (title, build, (limits, effort)) in enumerate(todo):
        if time.monotonic() - began > seconds:
            print(f"{len(todo) - n} points are left: the same command goes on", file=sys.stderr)
            return False
        graph = built.setdefault(title, build())
        found = run(graph, pricer=pricer, solve_seconds=SOLVE, limits=limits, effort=effort).summary()
        points[named(title, (limits, effort))] = found
        if not quick:
            POINTS.parent.mkdir(parents=True, exist_ok=True)
            part = POINTS.with_suffix(".part")
            part.write_text(json.dumps({"sources": of, "points": points}, indent=1, default=float) + "\n")
            part.replace(POINTS)
        print(f"{n + 1}/{len(todo)} {title} {limits} effort {effort}: {found['cost_us']:.2f} µs", file=sys.stderr)
    return True


def curves(quick: bool, points: Points) -> dict[str, dict[str, dict[str, dict[str, Any]]]]:
    """Graph -> sweep -> label of the setting -> summary of the run (`stages.Run.summary`)."""
    titles = dict.fromkeys(title for title, _, _ in wanted(quick))
    return {
        title: {s: {label: points[named(title, x)] for label, x in p.items()} for s, p in sweeps(quick).items()}
        for title in titles
    }


# ---------------------------------------------------------------- what they say
def rises(found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Neighbouring settings of a sweep of which the larger one gave a more expensive plan, as text with costs in µs."""
    costs = [(label, f["cost_us"], f["optimal"]) for label, f in found.items()]
    return [
        f"{x} to {y}: {a:.2f} to {b:.2f}" + ("" if proved else " (not solved to the end)")
        for (x, a, _), (y, b, proved) in pairwise(costs)
        if b > a * (1 + 2e-6)  # the gap at which the solver stops
    ]


def report(details: Mapping[str, Any]) -> dict[str, Any]:
    """Result for the figures: one row per graph and sweep."""
    rows = []
    for title, found in details.items():
        best = min(f["cost_us"] for points in found.values() for f in points.values())
        for sweep, points in found.items():
            above = 100 * (points[DEFAULTS[sweep]]["cost_us"] / best - 1)
            worse = rises(points)
            rows.append(
                row(f"plan cost by {sweep}, {title}", f"never rises; within {KNEE} % of the best at the default",
                    f"{above:.2f} % at {DEFAULTS[sweep]}" + (f"; rises from {'; '.join(worse)}" if worse else ""),
                    not worse and above <= KNEE)
            )  # fmt: skip
    return {"rows": rows, "details": dict(details)}


HEAD = """# Anytime curves

Plan cost in percent above the cheapest plan found for a graph with any setting, against one limit at a time, the others at
their defaults (in bold: the default of the column's limit); at stated roofline prices. `e-nodes` in brackets. A star marks
costs that the solver did not prove to be optimal for their e-graph within its time. More of any limit makes an e-graph that holds
those of less: beam and slack go in steps above their defaults, and below them a part of the default's e-graph is kept
(egraph/saturate/limit_steps.py). So no proved plan can be dearer than one of less.

    python -m benchmarks.saturation.anytime
"""


def markdown(details: Mapping[str, Any]) -> str:
    """The results as Markdown: one table per sweep, one line per graph."""
    lines = [HEAD]
    best = {t: min(f["cost_us"] for p in found.values() for f in p.values()) for t, found in details.items()}
    for sweep in SWEEPS:
        labels = list(next(iter(details.values()))[sweep])
        shown = [f"**{label}**" if label == DEFAULTS[sweep] else label for label in labels]
        lines += [f"## {sweep}", "", f"| graph | {' | '.join(shown)} |", "|---" * (len(labels) + 1) + "|"]
        for title, found in details.items():
            cells = [
                f"{100 * (f['cost_us'] / best[title] - 1):.2f}{'' if f['optimal'] else '*'} ({f['e_nodes']})"
                for f in (found[sweep][label] for label in labels)
            ]
            lines.append(f"| {title} | {' | '.join(cells)} |")
        worse = [f"{title}, {text}" for title, found in details.items() for text in rises(found[sweep])]
        lines += ["", f"More, and a dearer plan: {'; '.join(worse) if worse else 'nowhere'}.", ""]
    return "\n".join(lines)


def main(quick: bool = QUICK, seconds: float = math.inf, fresh: bool = False) -> dict[str, Any]:
    """Measure all curves; returns the result for the figures.

    The table is written unless `quick`. While points are missing, the result has no rows.
    """
    points: Points = {} if quick or fresh else kept()
    if not measure(quick, seconds, points):
        return {"rows": [], "details": {}}
    found = report(curves(quick, points))
    if not quick:
        (RESULTS / "anytime.md").write_text(markdown(found["details"]), encoding="utf-8")
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one graph, the least and the default of each sweep")
    parser.add_argument("--seconds", type=float, default=math.inf, help="end this slice after about so long")
    parser.add_argument("--fresh", action="store_true", help="forget the points of earlier slices")
    options = parser.parse_args()
    for line in main(options.quick, options.seconds, options.fresh)["rows"]:
        print(f"{line['figure']}: {line['measured']} ({'ok' if line['ok'] else 'NOT ' + line['required']})")
