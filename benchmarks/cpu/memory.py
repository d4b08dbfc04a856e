"""Peak memory of a whole optimization of Gemma-3-270M, verification included, above the weights' own bytes.

What counts is resident memory, sampled every 20 ms: what this process and its children have written, and the files that
this process maps (its weights, its libraries). The stage that runs at the peak is named.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Any

import tensor_graphs as tg
from tensor_graphs.progress import Progress

from ..common import BUDGET, QUICK, Sampler, gemma, row

TARGET = 2 << 30


class Watch(Sampler):
    """Samples of this process's memory by stage; `stage` is set from outside."""

    def __init__(self) -> None:
        super().__init__(0.02)
        self.stage = "start"
        self.peak: dict[str, dict[str, float]] = {}

    def sample(self) -> None:
        """Record the memory sizes if they are the largest of the current stage."""
        me = os.getpid()
        own, file = _sizes(me)
        others = sum(_sizes(child)[0] for child in _children(me))
        total = own + file + others
        if total > self.peak.get(self.stage, {}).get("total", 0.0):
            self.peak[self.stage] = {
                "total": total,
                "own": own,
                "mapped files": file,
                "children": others,
                "at": time.time(),
            }


def _children(pid: int) -> list[int]:
    """Ids of all descendants of a process."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += map(int, task.read_text().split())
    return found + [g for child in found for g in _children(child)]


def _sizes(pid: int) -> tuple[float, float]:
    """Resident bytes of a process, as (private pages, pages of mapped files); zeros if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0, 0.0
    found = {line.partition(":")[0]: 1024.0 * float(line.split()[1]) for line in lines if line.startswith("Rss")}
    return found.get("RssAnon", 0.0) + found.get("RssShmem", 0.0), found.get("RssFile", 0.0)


def main() -> dict[str, Any]:
    """Result for the figures: peak memory of one `optimize` (64 tokens), by stage."""
    layers = 2 if QUICK else 18
    folder = gemma(layers)
    weights = sum(f.stat().st_size for f in folder.glob("*.safetensors"))
    watch = Watch()

    def say(stage: str, _: str) -> None:
        watch.stage = stage

    with watch:
        report = tg.optimize(folder, dims={"sequence": 64}, budget=BUDGET, again=True, progress=Progress(say)).report
    gib = lambda b: f"{b / 2**30:.2f} GiB"
    stage, most = max(watch.peak.items(), key=lambda p: p[1]["total"])
    above = most["total"] - weights
    by_stage = ", ".join(f"{s} {gib(p['total'] - weights)}" for s, p in watch.peak.items())
    return {
        "rows": [
            row(f"peak memory of optimizing Gemma-3-270M ({layers} layers), above its weights, verification included",
                "≤ 2 GiB", f"{gib(above)} above {gib(weights)} of weights, in stage {stage} "
                f"(children {gib(most['children'])}, mapped files {gib(most['mapped files'])}); by stage: {by_stage}",
                above <= TARGET)
        ],
        "details": {"stages": watch.peak, "weights": weights, "seconds": report.seconds, "verification": report.verification},
    }  # fmt: skip
