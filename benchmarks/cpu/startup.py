"""How long `import tensor_graphs` and `tensor-graphs --help` take in a fresh process."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from ..common import QUICK, row


def seconds(command: list[str]) -> list[float]:
    """Wall-clock seconds of several runs of a command, after one that fills the page cache."""
    found = []
    for turn in range(4 if QUICK else 11):
        start = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        if turn:
            found.append(time.perf_counter() - start)
    return found


def main() -> dict[str, Any]:
    """Result for the figures: seconds of the whole process, with those of an empty Python process for comparison."""
    script = Path(sys.executable).with_name("tensor-graphs")
    bare = seconds([sys.executable, "-c", "pass"])
    imported = seconds([sys.executable, "-c", "import tensor_graphs"])
    helped = seconds([str(script), "--help"])
    loaded = subprocess.run(
        [sys.executable, "-c", "import sys, tensor_graphs; print('torch' in sys.modules)"],
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    text = lambda s: f"{median(s):.2f} s (an empty Python {median(bare):.2f} s)"
    return {
        "rows": [
            row("import tensor_graphs", "≤ 0.3 s, without torch", text(imported) + ("" if loaded == "False" else ", imports torch"),
                median(imported) <= 0.3 and loaded == "False"),
            row("tensor-graphs --help", "≤ 0.5 s", text(helped), median(helped) <= 0.5),
        ],
        "details": {"bare": bare, "import": imported, "help": helped},
    }  # fmt: skip
