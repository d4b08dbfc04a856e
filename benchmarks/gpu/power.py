"""Long matrix products at the power limit of a GPU: `python -m benchmarks.gpu.power [CASE ...] [--schedules 70]
[--render]`.

Schedules of a product are timed once in a burst, as a search times them, and once under sustained load, when the driver
limits the clock for power, beside cuBLAS on the same operands. A schedule that needs less power for the same work would
be faster under load. Records are in results/raw/gpu_power.json; results/gpu_power.md is made from them.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import tensor_graphs.egraph.builders.builders as t
from benchmarks.gpu.case import power_handle
from benchmarks.run import commit
from benchmarks.search.schedule_replay import around, kernel_of, searched, x
from tensor_graphs.egraph.composites import composite_ops as c
from tensor_graphs.egraph.ir.tensor import Tensor

TABLE = Path(__file__).parents[1] / "results/gpu_power.md"
RAW = Path(__file__).parents[1] / "results/raw/gpu_power.json"
LASTING_S, PAUSE_S = 0.4, 0.3  # of load, of which the second half counts; before it
KEPT, ROUNDS, CALLS = 24, 2, 10  # schedules put under load, the fastest in a burst; how often each; calls a replay
COMPILERS = 12

Row = dict[str, Any]


def gated(rows: int, width: int, inner: int) -> Tensor:
    """Two products and a gate."""
    a = x("a", rows, width)
    return c.silu(t.matmul(a, x("w", width, inner))) * t.matmul(a, x("u", width, inner))


def down(rows: int, inner: int, width: int) -> Tensor:
    """A product and a residual."""
    return t.matmul(x("a", rows, inner), x("w", inner, width)) + x("r", rows, width)


CASES: dict[str, tuple[Callable[[], Tensor], tuple[str, ...], tuple[int, int, int]]] = {
    "gated 2048×4096×14336": (lambda: gated(2048, 4096, 14336), ("w", "u"), (2048, 4096, 28672)),
    "down 2048×14336×4096": (lambda: down(2048, 14336, 4096), ("w",), (2048, 14336, 4096)),
}
"""Name: term, weights that may be laid out anew, and what cuBLAS multiplies for it: rows, sum, columns."""


# ---------------------------------------------------------------- measuring
def measured(case: str, schedules: int) -> dict[str, Any]:
    """Rows of a case: one per schedule, and cuBLAS."""
    import torch

    from tensor_graphs.backends.cuda import backend as cuda_cpp
    from tensor_graphs.backends.tuning.gpu_bench import Bench
    from tensor_graphs.backends.tuning.gpu_device import device_of

    term, laid, (m, k, n) = CASES[case]
    template, call = kernel_of(cuda_cpp, laid, term())
    wanted = around(*searched(template, call), schedules)
    device, rows = device_of("cuda"), []
    bench = Bench(device, template.pattern, call)
    tried = sorted(_tried(bench, template, call, wanted), key=lambda one: float(one[1].us))[:KEPT]
    a, b = (torch.randn(s, device="cuda").bfloat16() for s in ((m, k), (k, n)))
    out = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
    library = device.capture([lambda: torch.mm(a, b, out=out)] * CALLS)
    for _ in range(ROUNDS):
        rows += [
            {"schedule": s, "searched_us": one.us, **lasting(device, bench._recorded(one, CALLS).replay)}
            for s, one in tried
        ]
        rows.append({"schedule": "cuBLAS", **lasting(device, library)})
    return {"rows": rows, "flops": 2 * m * k * n, "commit": commit(), "device": torch.cuda.get_device_name(),
            "date": datetime.now(UTC).strftime("%Y-%m-%d")}  # fmt: skip


def _tried(bench: Any, template: Any, call: Any, wanted: list[Any]) -> Iterator[tuple[Any, Any]]:
    """Schedules that compile and give the right answer, each with its time in a burst."""
    from tensor_graphs.backends.generate.kernel_text import kernel_text
    from tensor_graphs.backends.tuning.compile_pool import CompilePool
    from tensor_graphs.backends.tuning.gpu_worker import warm_up_clock, with_gpu_lock

    pool = CompilePool(COMPILERS, 90)
    try:
        texts = [kernel_text(template, one) for s in wanted for one in [replace(call, schedule=s)]]
        jobs = [pool.submit(text, replace(call, schedule=s)) for s, text in zip(wanted, texts, strict=True)]
        for place, (schedule, text, job) in enumerate(zip(wanted, texts, jobs, strict=True)):
            if job.result().get("ok"):
                one = bench.loaded(text)
                with with_gpu_lock():
                    warm_up_clock(bench.device)
                    bench.attempt(place, one)
                yield schedule, one
    finally:
        pool.close()


def lasting(device: Any, replay: Callable[[], Any]) -> Row:
    """µs per call, watts and MHz: of the first replay after a pause, and under sustained load.

    The latter in the middle of the load's second half. Raises SystemExit without NVML.
    """
    from tensor_graphs.backends.tuning.gpu_worker import with_gpu_lock

    found = power_handle()
    if found is None:
        raise SystemExit(
            "The driver does not say what power is taken: nvidia-ml-py is not installed, or no GPU is here."
        )
    nvml, handle = found
    us, watts, mhz = [], [], []
    with with_gpu_lock():
        time.sleep(PAUSE_S)
        start = time.monotonic()
        while time.monotonic() - start < LASTING_S:
            us.append(device.elapsed(replay) / CALLS)
            watts.append(nvml.nvmlDeviceGetPowerUsage(handle) / 1000)
            mhz.append(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))
    half = len(us) // 2
    return {"burst_us": us[0], "us": median(us[half:]), "watts": median(watts[half:]), "mhz": median(mhz[half:])}


# ---------------------------------------------------------------- the table
def line(case: str, record: dict[str, Any]) -> str:
    """A case as one row: cuBLAS, the fastest schedule in a burst, the fastest under load, and the range of all
    schedules.
    """
    rows, tera = record["rows"], record["flops"] / 1e6
    both = lambda key, of: min(r[key] for r in of)
    ours = [r for r in rows if r["schedule"] != "cuBLAS"]
    library = [r for r in rows if r["schedule"] == "cuBLAS"]
    slowest = max(median(r["us"] for r in ours if r["schedule"] == s) for s in (r["schedule"] for r in ours))
    cells = [case, str(len(ours) // ROUNDS)]
    for of in (library, ours):
        burst, load = both("burst_us", of), both("us", of)
        cells += [f"{burst:.0f}", f"{load:.0f}", f"{tera / burst:.0f} / {tera / load:.0f}"]
    mhz = [r["mhz"] for r in rows]
    return f"| {' | '.join([*cells, f'{slowest:.0f}', f'{min(mhz):.0f}-{max(mhz):.0f}'])} |"


def render(records: dict[str, dict[str, Any]]) -> str:
    """The table of these records as Markdown."""
    head = ("product", "schedules", "cuBLAS µs: burst", "lasting", "TFLOP/s: burst / lasting", "ours µs: burst", "lasting",
            "TFLOP/s: burst / lasting", "slowest of ours, lasting", "MHz, lasting")  # fmt: skip
    legend = (
        f"bfloat16, µs a call: the best of {ROUNDS} turns. Burst: the first replay ({CALLS} calls) after a pause of {PAUSE_S:g} s. "
        f"Lasting: the middle of the second half of {LASTING_S:g} s of replays without a pause, where the driver holds the clock down for power. "
        "cuBLAS: one product of as many operations, without gate or residual."
    )
    about = dict.fromkeys(f"- {r['device']}, {r['date']}, commit {r['commit']}" for r in records.values())
    return "\n".join([
        "# Long products at the power limit", "", f"| {' | '.join(head)} |", "|" + "---|" * len(head),
        *(line(case, records[case]) for case in CASES if case in records), "", legend, "", *about,
    ]) + "\n"  # fmt: skip


def main() -> None:
    """Measure the cases named on the command line, or write the table of stored results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", choices=[[], *CASES])
    parser.add_argument("--schedules", type=int, default=70, help="of each case, compiled and timed in a burst")
    parser.add_argument("--render", action="store_true")
    given = parser.parse_args()
    records = json.loads(RAW.read_text()) if RAW.exists() else {}
    for case in [] if given.render else given.cases or CASES:
        records[case] = measured(case, given.schedules)
        RAW.write_text(json.dumps(records, indent=1) + "\n")
    TABLE.write_text(render(records))


if __name__ == "__main__":
    main()
