"""Runs a search process of the `torch.compile` backend: optimizes the graph in a job folder and saves the program
there.

`python -m tensor_graphs.torch_compile.worker FOLDER` reads `job.json` and `graph.safetensors`, and writes `program/`.
"""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

from ..models.files.native import load_graph
from ..pipeline.optimize import optimize
from ..processes.child import end_with_parent

#: Beginning of the name of the temporary folder of a process's jobs.
PREFIX = "tensor_graphs-"
TRIES = 10  # removals of a folder into which the search may write


def main(folder: Path) -> None:
    """Optimize the graph in a job folder and save the program there. Raises the errors of `optimize`."""
    job = json.loads((folder / "job.json").read_text(encoding="utf-8"))
    graph = replace(load_graph(folder / "graph.safetensors"), typical=job["typical"], inner=frozenset(job["inner"]))
    program = optimize(graph, dims=job["sizes"], **job["options"])
    program.save(folder / "program")


def remove_jobs(folder: Path) -> None:
    """Remove a job folder, and the folder of all jobs around it if `search.submit` made that: the process that would
    do so has ended."""
    whole = folder.parent if folder.parent.name.startswith(PREFIX) else folder
    for _ in range(TRIES):  # the search goes on meanwhile, and may write
        shutil.rmtree(whole, ignore_errors=True)
        if not whole.exists():
            return


if __name__ == "__main__":
    end_with_parent(partial(remove_jobs, Path(sys.argv[1])))
    main(Path(sys.argv[1]))
