"""Anytime curves: plan cost against the beam, the guard's slack, rounds, e-nodes and seconds, each varied alone.

Does more effort ever give a dearer plan, and do the defaults lie on the knee: at the least effort that gives the best
cost? Prices are the stated roofline, so costs are the same on every machine; only the sweep over seconds depends on it.
Every figure is a percentage above the cheapest plan that any setting found for that graph.

    python -m benchmarks.anytime             writes results/anytime.md (a quarter of an hour)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

from tensor_graphs.egraph.graph import Graph
from tensor_graphs.egraph.pricing import Roofline
from tensor_graphs.egraph.saturate import BEAM, SLACK_LAUNCHES, Limits
from tensor_graphs.models import zoo
from tensor_graphs.models.field import load_field_json
from tensor_graphs.models.load import load

from .common import QUICK, ROOT, data, gemma, row
from .stages import run, stated_prices

LAUNCH, DEFAULT = Roofline().launch, Limits()
LONG = 20.0  # seconds where time is not what is varied
SOLVE = 10.0  # seconds of one extraction: above it costs are the solver's, not the e-graph's


def _sweep(name: str, values: tuple[Any, ...]) -> list[tuple[str, dict[str, Any]]]:
    return [(str(v), {"limits": Limits(**{"seconds": LONG, name: v})}) for v in values]


#: limit -> (label, arguments of `run`); the last of a sweep is the most effort.
SWEEPS: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "beam": [*_sweep("beam", (1, 2, 4, 8, 16)), ("none", {"limits": Limits(beam=0, seconds=LONG)})],
    "slack": [(str(n), {"slack": n * LAUNCH, "limits": Limits(seconds=LONG)}) for n in (0, 1, 2, 3, 5, 10)],
    "rounds": _sweep("iterations", (0, 1, 2, 3, 4, 6, 8, 10, 14)),
    "e-nodes": _sweep("nodes", (100, 300, 1000, 3000, 20000)),
    "seconds": _sweep("seconds", (0.1, 0.3, 1.0, 5.0)),
}
#: The label of the default in each sweep.
DEFAULTS = {
    "beam": str(BEAM), "slack": str(SLACK_LAUNCHES), "rounds": str(DEFAULT.iterations),
    "e-nodes": str(DEFAULT.nodes), "seconds": str(DEFAULT.seconds),
}  # fmt: skip


def graphs() -> dict[str, Callable[[], Graph]]:
    """Blocks of eight kinds of models."""
    found: dict[str, Callable[[], Graph]] = {
        "NasRNN, 2 steps": lambda: zoo.nasrnn(steps=2),
        "BERT layer": lambda: load_field_json(data("models/bert_tensat.json")),
        "SqueezeNet": lambda: load_field_json(data("models/squeezenet.json")),
        "ResNet block": lambda: zoo.resnet50(image=56, blocks=(1,), classes=16),
        "Gemma layer": lambda: load(gemma(1, vocab=1024)),
        "GPT layer": lambda: zoo.transformer(1, hidden=256, heads=4, tokens=64),
        "U-Net, 1 level": lambda: zoo.unet(levels=1),
        "DiT block": lambda: zoo.dit_block(),
    }
    return dict(list(found.items())[:1]) if QUICK else found


def measure(graph: Graph) -> dict[str, dict[str, dict[str, Any]]]:
    """Sweep -> setting -> summary of the run."""
    pricer = stated_prices()
    return {
        sweep: {label: run(graph, pricer=pricer, solve_seconds=SOLVE, **kinds).summary() for label, kinds in points}
        for sweep, points in SWEEPS.items()
    }


def rises(found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Where more effort gave a dearer plan: settings and costs in µs."""
    costs = [(label, f["cost_us"], f["optimal"]) for label, f in found.items()]
    return [
        f"{x} to {y}: {a:.2f} to {b:.2f}" + ("" if proved else " (not solved to the end)")
        for (x, a, _), (y, b, proved) in pairwise(costs)
        if b > a * (1 + 1e-9)
    ]


def main() -> dict[str, Any]:
    """One row a graph and sweep."""
    rows, details = [], {}
    for title, build in graphs().items():
        found = details[title] = measure(build())
        best = min(f["cost_us"] for points in found.values() for f in points.values())
        for sweep, points in found.items():
            above = 100 * (points[DEFAULTS[sweep]]["cost_us"] / best - 1)
            worse = rises(points)
            rows.append(
                row(f"plan cost by {sweep}, {title}", "never rises; within 0.5 % of the best at the default",
                    f"{above:.2f} % at {DEFAULTS[sweep]}" + (f"; rises from {'; '.join(worse)}" if worse else ""),
                    not worse and above <= 0.5)
            )  # fmt: skip
    return {"rows": rows, "details": details}


HEAD = """# Anytime curves

Plan cost in percent above the cheapest plan found for a graph with any setting, against one limit at a time, the others at
their defaults (in bold: the default of the column's limit); at stated roofline prices. `e-nodes` in brackets. A star marks
costs that the solver did not prove to be optimal for their e-graph within its time.

    python -m benchmarks.anytime
"""


def markdown(details: Mapping[str, Any]) -> str:
    """One table a sweep, one line a graph."""
    lines = [HEAD]
    best = {t: min(f["cost_us"] for p in found.values() for f in p.values()) for t, found in details.items()}
    for sweep, points in SWEEPS.items():
        labels = [label for label, _ in points]
        shown = [f"**{label}**" if label == DEFAULTS[sweep] else label for label in labels]
        lines += [f"## {sweep}", "", f"| graph | {' | '.join(shown)} |", "|---" * (len(labels) + 1) + "|"]
        for title, found in details.items():
            cells = [
                f"{100 * (f['cost_us'] / best[title] - 1):.2f}{'' if f['optimal'] else '*'} ({f['e_nodes']})"
                for f in (found[sweep][label] for label in labels)
            ]
            lines.append(f"| {title} | {' | '.join(cells)} |")
        worse = [f"{title}, {text}" for title, found in details.items() for text in rises(found[sweep])]
        lines += ["", f"More effort, dearer plan: {'; '.join(worse) if worse else 'nowhere'}.", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    measured = main()
    (ROOT / "benchmarks/results/raw/anytime.json").write_text(json.dumps(measured, indent=1, default=float) + "\n")
    (ROOT / "benchmarks/results/anytime.md").write_text(markdown(measured["details"]))
