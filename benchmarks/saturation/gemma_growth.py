"""How saturation and extraction grow with depth: Gemma-3-270M layers, 6 to 48, vocabulary 8192, T 64."""

from __future__ import annotations

from math import log
from typing import Any

from tensor_graphs.models.load import load

from ..common import BUDGET, QUICK, gemma, row
from .stages import run, warm_store


def main() -> dict[str, Any]:
    """Result for the figures: the growth exponent between the smallest and the largest depth (1 is linear)."""
    depths = (2, 4) if QUICK else (6, 12, 24, 48)
    sizes, found = {"sequence": 64}, {}
    filled = warm_store(gemma(depths[0], vocab=8192), sizes, 2 * BUDGET)
    run(load(gemma(depths[0], vocab=8192)), sizes)  # start the workers, fill caches
    for depth in depths:
        graph = load(gemma(depth, vocab=8192))
        found[depth] = min((run(graph, sizes).summary() for _ in range(2)), key=lambda s: s["total"])
    seconds = {d: f["total"] for d, f in found.items()}
    exponent = log(seconds[depths[-1]] / seconds[depths[0]]) / log(depths[-1] / depths[0])
    each = ", ".join(f"{d}: {s:.2f} s ({1000 * s / d:.0f} ms a layer)" for d, s in seconds.items())
    linear = {
        stage: round(log(found[depths[-1]]["seconds"][stage] / max(first, 1e-3)) / log(depths[-1] / depths[0]), 2)
        for stage, first in found[depths[0]]["seconds"].items()
        if found[depths[-1]]["seconds"][stage] > 0.1
    }
    return {
        "rows": [
            row(f"the same, growth from {depths[0]} to {depths[-1]} layers", "at most linear (exponent ≤ 1)",
                f"exponent {exponent:.2f}; {each}", exponent <= 1.0)
        ],
        "details": {"runs": found, "exponents": linear, "fill": filled},
    }  # fmt: skip
