"""Timeline of an optimization: `python -m benchmarks.search.timeline NAME [--budget 40] [--store FOLDER] [--backend
gpu] [--json FILE]`.

NAME is a workload (`workloads.py`), a variant (`variants.py`) or a whole model (`whole_models.py`). It is optimized
once from the given store, or from an empty one, as in a fresh process. Printed are the report and the activities of
each process over time. The first kernel's time is known when the first span of a device's `try` ends.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any


def made(name: str) -> tuple[Any, tuple[Any, ...], float | None]:
    """(module, example inputs, tolerance) by the name of a workload, variant, whole model, or module of
    models/gpu_call_models.py."""
    from benchmarks.models import gpu_call_models
    from benchmarks.models.whole_models import MODELS
    from benchmarks.models.workload_variants import VARIANTS
    from benchmarks.models.workloads import WORKLOADS

    if name in gpu_call_models.MODULES:
        return (*gpu_call_models.build(name), None)
    work = {**WORKLOADS, **VARIANTS, **MODELS}[name]
    inputs, weights = work.arguments("cpu")
    return work.module(weights), tuple(inputs), getattr(work, "tolerance", None)


def main() -> None:
    """Parse the command line, optimize the module, print the report and the timeline."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("--budget", type=float, default=40.0)
    parser.add_argument("--store", type=Path)
    parser.add_argument("--backend", default="gpu")
    parser.add_argument("--json", type=Path, help="write the report's fields here")
    options = parser.parse_args()
    module, inputs, tolerance = made(options.name)
    more = {} if tolerance is None else {"tolerance": tolerance}

    import tensor_graphs as tg
    from tensor_graphs.report.timeline import drawn

    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        program = tg.optimize(
            module, inputs, backend=options.backend, budget=options.budget, costdb=options.store or folder, **more
        )
        took = time.monotonic() - began
    report = program.report
    print(f"{options.name}: {took:.1f} s within a budget of {options.budget:g} s\n{report}\n{drawn(report.timeline)}")
    print({name: round(value, 2) for name, value in report.measuring.items()})
    if options.json:
        options.json.write_text(json.dumps(report.fields()) + "\n")


if __name__ == "__main__":
    main()
