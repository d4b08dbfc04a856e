"""Speed of writing and compiling schedules of a workload's kernels, without a GPU: `python -m benchmarks.gpu_search
WORKLOAD [--kernels 20] [--workers 2] [--capability 90]`.

A stand-in for the device process answers at once with made-up times, so that only the host's work remains: emission,
compilation, order of trials. Prints seconds by part, and kernels and schedules per second.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import time
from typing import Any
from unittest import mock


class Device:
    """Stand-in for a device process: every kernel is right, and its time is made up from the length of its text."""

    alive = True

    def start(self) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Does nothing."""

    def ask(self, job: dict[str, Any], timeout: float = 0.0) -> dict[str, Any]:
        """The made-up reply to a measuring job."""
        us = 5.0 + 5.0 * random.Random(str(job.get("text", job.get("index")))).random()
        return {"ok": True, "accuracy": {"rel_fro": 0.0}, "cold": [us] * 3, "hot": [us] * 3, "clock_mhz": 0.0}


def main() -> None:
    """Parse the command line, run the search, print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workload")
    parser.add_argument("--kernels", type=int, default=20, help="of the workload's distinct generated kernels, evenly")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--capability", type=int, default=90)
    options = parser.parse_args()
    os.environ.setdefault("TENSOR_GRAPHS_GPU", "gpu:none:sm90:multiprocessors=132|none|none")

    from benchmarks.models.workloads import WORKLOADS
    from tensor_graphs.backends.generate.generator import KernelGenerator
    from tensor_graphs.backends.library.torch_cuda import TorchCudaBackend
    from tensor_graphs.backends.registry import select
    from tensor_graphs.backends.tuning.compile_pool import CompilePool
    from tensor_graphs.backends.tuning.measure_gpu import GpuMeasurer
    from tensor_graphs.options import Options
    from tensor_graphs.pipeline.context.session import Session
    from tensor_graphs.pipeline.sources.source import as_graph
    from tensor_graphs.pipeline.stages.match import hypergraph
    from tensor_graphs.pipeline.stages.prepare import prepare
    from tensor_graphs.pipeline.stages.rewrite import rewrite

    work = WORKLOADS[options.workload]
    inputs, weights = work.arguments("cpu")
    there = lambda self: ""
    with (
        mock.patch.object(TorchCudaBackend, "unavailable", there),
        mock.patch.object(KernelGenerator, "unavailable", there),
    ):
        session = Session(Options(backend="triton-only"))
        graph = as_graph(work.module(weights), tuple(inputs))
        view = rewrite(session, prepare(session, graph, None).work).view
        start = time.monotonic()
        found = hypergraph(session, view, select("triton-only"))
    kernels = [found.candidates[i] for i in found.calls[0] if found.candidates[i].template.space is not None]
    chosen = kernels[:: max(1, len(kernels) // options.kernels)][: options.kernels]
    print(f"{len(kernels)} generated kernels in {time.monotonic() - start:.2f} s, {len(chosen)} of them are searched")
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TRITON_CACHE_DIR"] = cache
        rows: list[Any] = []
        sink = mock.Mock(spec=["add"], add=rows.extend)
        with GpuMeasurer(sink, device="cpu", workers=0, worker=Device()) as measurer:  # type: ignore[arg-type]
            measurer.pool = CompilePool(options.workers, options.capability)
            start = time.monotonic()
            measurer.measure(chosen)
            took = time.monotonic() - start
    tried = len({r.key.digest for r in rows})
    failed: dict[str, int] = {}
    for row in rows:
        if row.kind == "failure":
            failed[row.status] = failed.get(row.status, 0) + 1
    print(
        f"{took:.1f} s with {options.workers} compilers: {took / len(chosen):.2f} s a kernel, {took / tried:.3f} s a schedule"
    )
    print("parts", {k: round(v, 2) for k, v in measurer.clock.seconds.items()}, "failures", failed)


if __name__ == "__main__":
    main()
