"""Seconds from the start of a second process to the first result of a saved decode step: `python -m
benchmarks.decoding.saved_step [MODEL] [--budget S] [--unmeasured] [--folder F] [--runs N] [--parts save load]`.

`save` searches the decode step of a model of benchmarks/decoding/llm.py (Llama-3.2-1B's shape on a GPU, random
weights), calls it twice and saves it in the folder; with `--unmeasured`, the search measures and verifies nothing.
`load` starts `--runs` processes that load and call it, and as many that only read its weights file to the device, in
turn. Printed are the medians of seconds by stage; `beyond reading` is the time from the import of this package to the
first result less the time in which the other process reads the weights. Both processes have imported PyTorch and made
the device's context before. Results: standard output, and the file `--out`, as JSON.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from ..common import WORK

CALLS = 8  # after the first
SECONDS = 120.0  # limit of a process
BEFORE = """
import json, sys, time
marks, last = {}, time.perf_counter()
def mark(name):
    global last
    if device: torch.cuda.synchronize()
    now = time.perf_counter()
    marks[name], last = now - last, now
device = ""
import torch
mark("import torch")
device = "cuda" if torch.cuda.is_available() else ""
torch.zeros(1, device=device or "cpu")
mark("context")
"""
CHILDREN = {
    "load": BEFORE + """
from tensor_graphs import load_program
mark("import the package")
program = load_program(sys.argv[1])
mark("load")
program.flat()
mark("first call")
program.flat()
mark("second call")
for _ in range(int(sys.argv[2])): program.flat()
mark("later calls")
print(json.dumps(marks))
""",
    "read": BEFORE + """
from safetensors.torch import load_file
weights = load_file(sys.argv[1] + "/weights.safetensors", device=device or "cpu")
if not device: weights = {name: x.clone() for name, x in weights.items()}
mark("read the weights")
print(json.dumps(marks))
""",
}  # fmt: skip


def save(name: str, budget: float, folder: Path, unmeasured: bool) -> dict[str, Any]:
    """Search and save a model's decode step; seconds, and figures of the program."""
    from .llm import generator

    begun = time.perf_counter()
    made = generator(name, budget, **({"measure": False, "verify": False} if unmeasured else {}))
    loaded = time.perf_counter()
    decode = made._programs.decode()
    for _ in range(2):  # records the launches, and compiles the function of direct calls
        decode.flat()
    searched = time.perf_counter()
    decode.save(folder)
    return {
        "model": name, "kernels": decode.manifest.kernels, "warnings": decode.report.warnings,
        "weights_bytes": (folder / "weights.safetensors").stat().st_size, "weights_s": loaded - begun,
        "search_s": searched - loaded, "save_s": time.perf_counter() - searched,
    }  # fmt: skip


def child(kind: str, folder: Path) -> dict[str, float]:
    """Seconds of each stage of a new process, and of the whole process as its parent sees it."""
    begun = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", CHILDREN[kind], str(folder), str(CALLS)], capture_output=True, text=True, timeout=SECONDS, check=False
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return {**json.loads(done.stdout.splitlines()[-1]), "process": time.perf_counter() - begun}


def load(folder: Path, runs: int, show: Callable[[str], None]) -> dict[str, dict[str, float]]:
    """Medians of the stages of processes that load the program, and of those that only read its weights."""
    found: dict[str, list[dict[str, float]]] = {kind: [] for kind in CHILDREN}
    for _ in range(runs):
        for kind in CHILDREN:
            found[kind].append(child(kind, folder))
            show(f"{kind}: " + ", ".join(f"{stage} {s:.3f}" for stage, s in found[kind][-1].items()))
    return {kind: {stage: median(r[stage] for r in rows) for stage in rows[0]} for kind, rows in found.items()}


def main() -> None:
    """Run the parts named on the command line, and print the table."""
    from tensor_graphs.backends.registry import backend

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="small" if backend("torch_cuda").unavailable() else "llama-1b")
    parser.add_argument("--budget", type=float, default=40.0, help="seconds of the search")
    parser.add_argument("--unmeasured", action="store_true", help="without measuring and verifying")
    parser.add_argument("--folder", type=Path, default=WORK / "saved_step")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--parts", nargs="+", choices=("save", "load"), default=["save", "load"])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    row: dict[str, Any] = {}
    if "save" in options.parts:
        options.folder.parent.mkdir(parents=True, exist_ok=True)
        row["save"] = save(options.model, options.budget, options.folder, options.unmeasured)
        print(json.dumps(row["save"]), flush=True)
    if "load" in options.parts:
        row |= load(options.folder, options.runs, lambda line: print(line, flush=True))
        own = sum(row["load"][stage] for stage in ("import the package", "load", "first call"))
        row["beyond_reading_s"] = own - row["read"]["read the weights"]
        print("| stage | seconds |\n|---|---|")
        for stage, seconds in row["load"].items():
            print(f"| {stage} | {seconds:.3f} |")
        print(f"| read the weights only | {row['read']['read the weights']:.3f} |")
        print(f"| beyond reading | {row['beyond_reading_s']:.3f} |")
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(row, indent=1) + "\n")


if __name__ == "__main__":
    main()
