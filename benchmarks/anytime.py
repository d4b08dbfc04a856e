"""Does more effort ever give a dearer plan? Plan cost against rounds, slack, beam and e-nodes, each varied alone.

Prices are the stated roofline. Times are limited by nothing else than the varied limit.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from tensor_graphs.egraph.pricing import Roofline
from tensor_graphs.egraph.saturate import Limits
from tensor_graphs.models import zoo

from .common import QUICK, row
from .stages import run, stated_prices

LAUNCH = Roofline().launch
SWEEPS: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "rounds": [(str(n), {"limits": Limits(iterations=n, seconds=20)}) for n in (0, 1, 2, 3, 4, 6, 8, 10, 12)],
    "slack in launches": [(str(n), {"slack": n * LAUNCH, "limits": Limits(seconds=20)}) for n in (0, 1, 2, 3, 5, 10)],
    "beam": [(str(k), {"limits": Limits(beam=k, seconds=20)}) for k in (1, 2, 4, 8, 16)],
    "e-nodes": [(str(n), {"limits": Limits(nodes=n, seconds=20)}) for n in (200, 500, 1000, 2000, 5000, 20000)],
}


def graphs() -> dict[str, Any]:
    """Small models of different kinds."""
    found = {
        "NasRNN, 2 steps": lambda: zoo.nasrnn(steps=2),
        "transformer layer": lambda: zoo.transformer(1, hidden=256, heads=4, tokens=64),
        "U-Net, 1 level": lambda: zoo.unet(levels=1),
    }
    return dict(list(found.items())[:1]) if QUICK else found


def main() -> dict[str, Any]:
    """One row a model and sweep."""
    rows, details = [], {}
    for title, build in graphs().items():
        graph, pricer = build(), stated_prices()
        for sweep, points in SWEEPS.items():
            found = {label: run(graph, pricer=pricer, solve_seconds=10.0, **kinds).summary() for label, kinds in points}
            costs = [f["cost_us"] for f in found.values()]
            rises = [f"{a:.2f} to {b:.2f}" for a, b in pairwise(costs) if b > a * (1 + 1e-9)]
            text = ", ".join(f"{k}: {f['cost_us']:.1f}" for k, f in found.items())
            rows.append(
                row(f"plan cost in µs by {sweep}, {title}", "never rises",
                    text + (f"; rises: {'; '.join(rises)}" if rises else ""), not rises)
            )  # fmt: skip
            details[f"{title}, {sweep}"] = found
    return {"rows": rows, "details": details}
