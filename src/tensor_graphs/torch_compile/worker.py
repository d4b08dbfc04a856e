"""Runs a search process of the `torch.compile` backend: optimizes the graph in a job folder and saves the program
there.

`python -m tensor_graphs.torch_compile.worker FOLDER` reads `job.json` and `graph.safetensors`, and writes `program/`.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

from ..models.files.native import load_graph
from ..pipeline.optimize import optimize
from ..processes.child import die_with_parent


def main(folder: Path) -> None:
    """Optimize the graph in a job folder and save the program there. Raises the errors of `optimize`."""
    job = json.loads((folder / "job.json").read_text(encoding="utf-8"))
    graph = replace(load_graph(folder / "graph.safetensors"), typical=job["typical"], inner=frozenset(job["inner"]))
    program = optimize(graph, dims=job["sizes"], **job["options"])
    program.save(folder / "program")


if __name__ == "__main__":
    die_with_parent()
    main(Path(sys.argv[1]))
