"""Cost of cutting a graph into blocks: the plan's cost by block size, beside saturation of the whole graph at once.

Prices are the stated roofline, so that costs compare across machines and runs. The uncut graph gets ten times the
limits; if it reaches them all the same, its cost is not the best possible either.
"""

from __future__ import annotations

from typing import Any

from benchmarks.models import zoo
from tensor_graphs.egraph.saturate.saturate import Limits

from ..common import QUICK, row
from .stages import run, stated_prices

SIZES = (24, 48, 96, 192, None)
WIDE = Limits(nodes=200_000, iterations=10, seconds=60.0)


def graphs() -> dict[str, Any]:
    """Graphs by title, small enough that the whole e-graph fits into memory."""
    found = {
        "transformer, 4 layers": lambda: zoo.transformer(4, hidden=256, heads=4, tokens=64),
        "small U-Net": zoo.unet,
        "DiT block": lambda: zoo.dit_block(hidden=384, heads=6, tokens=64),
        "NasRNN, 5 steps": zoo.nasrnn,
    }
    return dict(list(found.items())[-1:]) if QUICK else found


def main() -> dict[str, Any]:
    """Result for the figures: one row per model, the estimated cost by block size relative to the best."""
    rows, details = [], {}
    for title, build in graphs().items():
        graph, pricer = build(), stated_prices()
        found: dict[str, Any] = {}
        for size in SIZES:
            label = str(size) if size else "uncut"
            found[label] = run(graph, max_nodes=size, limits=Limits() if size else WIDE, pricer=pricer).summary()
        best = min(f["cost_us"] for f in found.values())
        text = ", ".join(
            f"{k}: +{100 * (f['cost_us'] / best - 1):.2f} % ({f['unique_blocks']} of {f['instances']} blocks, {f['total']:.1f} s)"
            for k, f in found.items()
        )
        rows.append(
            row(
                f"loss by cutting into blocks of at most n nodes, {title}",
                "reported (default n = 96)",
                f"best {best:.1f} µs; {text}",
            )
        )
        details[title] = found
    return {"rows": rows, "details": details}
