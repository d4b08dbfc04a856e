"""Programs chosen by timing finalists, beside those with the least summed kernel times: `python -m
benchmarks.gpu.finalists [NAME ...] [--budget S] [--seconds S]`.

Each workload (default: decode_step_b16, gpt2_t128) is optimized in a process of its own; `old` is the plan with the
least predicted time of the same measurements, `new` the returned one. Both are replayed in turn over rotating arguments
as in `gpu.py`. Printed: predicted and measured time of each finalist, and µs, kernels and seconds of both programs.
`--device cpu --small` shows that it runs.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest import mock

NAMES = ("decode_step_b16", "gpt2_t128")


def compare(name: str, options: argparse.Namespace) -> None:
    """Optimize one workload, build the plan with the least predicted time from the same measurements, and time both."""
    import tensor_graphs as tg
    from benchmarks.gpu.case import Case, described
    from benchmarks.gpu.whole_models import Whole
    from benchmarks.models import whole_models, workloads
    from tensor_graphs.pipeline.stages import time_finalists

    whole = name in whole_models.MODELS
    full: Any = whole_models.MODELS[name] if whole else workloads.WORKLOADS[name]
    tiny: Any = whole_models.TINY[name] if whole else workloads.small(full)
    with tempfile.TemporaryDirectory() as folder:
        store, target = Path(folder) / "store", Path(folder) / "case.json"
        work = tiny if options.small else full
        case = (Whole if whole else Case)(full, work, target, options.device, options.budget, store)
        source = (work.module([w.cpu() for w in case.weights]), tuple(x.cpu() for x in case.inputs))
        backend = "gpu" if options.device == "cuda" else "torch"
        for label, count in (("new", time_finalists.COUNT), ("old", 1)):
            with case.variant(label) as found, mock.patch.object(time_finalists, "COUNT", count):
                start = time.monotonic()
                program = tg.optimize(
                    *source, backend=backend, costdb=store, budget=options.budget, again=label == "old"
                )
                found |= described(program) | {"seconds": time.monotonic() - start, "runs": program.report.runs}
                for f in program.report.finalists:
                    print(f"{name}: finalist {f}", flush=True)
                case.add(label, found, case.instances(program))
        case.time()
        for label, found in case.record["variants"].items():
            kernels = [(k["kernel"], round(k["us"], 1)) for k in found.get("kernels", ())]
            message = (
                f"{found['us']:.1f} µs (fastest {found['fastest_us']:.1f})" if "us" in found else found.get("failed")
            )
            print(f"{name}: {label}: {message}, predicted {found.get('estimated_us', 0.0):.1f} µs, {len(kernels)} kernels, "
                  f"runs {found.get('runs')}, {found.get('seconds', 0.0):.0f} s; slowest kernels "
                  f"{sorted(kernels, key=lambda k: -k[1])[:6]}", flush=True)  # fmt: skip


def main() -> int:
    """Run each workload in a process of its own; returns how many failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("names", nargs="*", default=list(NAMES))
    parser.add_argument("--budget", type=float, default=40.0, help="seconds of an optimization")
    parser.add_argument("--seconds", type=float, default=240.0, help="of the whole run")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--small", action="store_true", help="small sizes")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        compare(options.names[0], options)
        return 0
    failed, until = 0, time.monotonic() + options.seconds
    for n, name in enumerate(options.names):
        given = [
            name,
            "--child",
            "--budget",
            str(options.budget),
            "--device",
            options.device,
            *["--small"] * options.small,
        ]
        seconds = max(1.0, (until - time.monotonic()) / (len(options.names) - n))
        try:
            failed += subprocess.run([sys.executable, "-m", __spec__.name, *given], timeout=seconds).returncode != 0
        except subprocess.TimeoutExpired:
            print(f"{name}: stopped after {seconds:.0f} s", flush=True)
            failed += 1
    return failed


if __name__ == "__main__":
    sys.exit(main())
