"""Schedules of skinny GEMM with packed weights, on a GPU: `python -m benchmarks.decoding.packed_schedules [CASE ...]
[--count N] [--held N] [--out FILE]`.

Each case is a product of a decode step of Llama-3-8B (`benchmarks.decoding.kernels`, and `gate-up x ROWS FORM` with the
activation). All legal schedules of a grid are ranked by the ranking model (`backends/cuda/packed_ranking.py`); the
first `--count` of each form (prefetch distance, codes in registers or not) are timed as a search times them (caches
cold). The `--held` best ones are timed again as in a program whose kernels overlap: weights are read before the wait
for the previous launch. Printed are µs of the bytes at the device's bandwidth, then µs and schedules, best first;
`--out` writes all of them with the model's estimates.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import tensor_graphs.egraph.builders.builders as t
from tensor_graphs.backends.cuda.backend import BACKEND as CUDA
from tensor_graphs.backends.cuda.ranking.model import FLAGS, Schedule
from tensor_graphs.backends.cuda.skinny_schedules import packed_ranking
from tensor_graphs.backends.generate.template import GeneratedKernel, template_of
from tensor_graphs.costdb.keys.rates import GPU
from tensor_graphs.egraph.composites import composite_ops as c
from tensor_graphs.egraph.ir.tensor import Tensor
from tensor_graphs.extract.model.kernel import Call
from tensor_graphs.models.common import quantization

from ..search.schedule_replay import with_schedules
from .kernels import bytes_of, call_of, product

COUNT, HELD, SHOWN = 12, 6, 5
FORMS = {"int4": 2, "fp8": 1}  # numbers of a byte


def gated(rows: int, form: str) -> Tensor:
    """Products with the gate and up weights of Llama-3-8B, and the activation."""
    x = t.input("x", (rows, 4096))

    def weight(name: str) -> Tensor:
        codes = t.input(name, (14336, 4096 // FORMS[form]), "uint8")
        scale = t.input(f"{name}s", (14336, 4096 // quantization.group_of(form, 4096)))
        return t.transpose(quantization.dequantized(form, codes, scale))

    return c.silu(t.matmul(x, weight("g"))) * t.matmul(x, weight("u"))


CASES: dict[str, Callable[[], Tensor]] = {
    f"{shape} x {rows} {form}": (
        (lambda rows=rows, form=form: gated(rows, form)) if shape == "gate-up"
        else lambda shape=shape, rows=rows, form=form: product(f"8b-{shape}", rows, form)  # type: ignore[misc]
    )
    for rows in (1, 16) for form in FORMS for shape in ("qkv", "o", "gate-up", "down", "head")
}  # fmt: skip


def kernel(case: str) -> tuple[GeneratedKernel, Call]:
    """(template, call) of a case, in CUDA C++."""
    template = template_of(CUDA.emitter, CASES[case]())
    return template, call_of(template)


def grid(template: GeneratedKernel, call: Call, count: int) -> dict[str, tuple[Schedule, float]]:
    """Stored text of a schedule -> (schedule, estimated µs): of each prefetch distance, with codes in registers or not,
    the `count` best legal ones, no two of them with equal tiles and threads."""
    found = template.lower(call)
    assert found is not None and template.fits is not None
    model = packed_ranking(found.kernel, found.shape, found.cuts)
    assert model is not None, "no packed weight"
    ordered = sorted(model.ranked(), key=lambda pair: pair[1])
    chosen: dict[str, tuple[Schedule, float]] = {}
    seen = set[tuple[int, ...]]()
    form = lambda s: (s.get("ahead", 0), s.get("direct", 0))
    left = dict.fromkeys({form(s) for s, _ in ordered}, count)
    for numbers, us in ordered:
        schedule = {k: v for k, v in numbers.items() if v != 1 or k[0] in "tu" or k in FLAGS} | {
            "packed": 1,
            "early": 1,
        }
        schedule |= {"warps": numbers["warps"], "n": numbers["n"]}
        kind = (*form(numbers), *(numbers.get(name, 0) for name in ("n", "warps", "wide")))
        if left[form(numbers)] and kind not in seen and template.fits(replace(call, schedule=schedule)):
            seen.add(kind)
            chosen[json.dumps(schedule, sort_keys=True)] = schedule, us
            left[form(numbers)] -= 1
    return chosen


class GridTimer:
    """Times schedules with the measurer of a search, whose processes stay between cases."""

    def __init__(self, device: str = "cuda") -> None:
        from tensor_graphs.backends.tuning.measure_gpu import GpuMeasurer
        from tensor_graphs.backends.tuning.measurement import SinkBase

        self.rows = list[Any]()
        sink: Any = type("Rows", (SinkBase,), {"add": lambda _, some: self.rows.extend(some)})()
        self.measurer = GpuMeasurer(sink, device=device, schedules=1000)

    def timed(self, template: GeneratedKernel, call: Call, wanted: Sequence[Schedule]) -> dict[str, float]:
        """µs (cold caches, the median) by the text of a schedule, of those that could be timed."""
        from tensor_graphs.costdb.store.schema import TimingRow
        from tensor_graphs.extract.model.kernel import Candidate, Vertex

        self.rows.clear()
        place = Candidate(with_schedules(template, wanted), Vertex(0, call.output.strides), (), call)
        self.measurer.measure([place])
        return {
            json.dumps(dict(r.key.schedule), sort_keys=True): median(r.samples)
            for r in self.rows
            if isinstance(r, TimingRow) and r.regime == "cold"
        }


def figures(case: str, timer: GridTimer, count: int, held: int) -> dict[str, Any]:
    """Row of a case: µs of its bytes, (µs, estimate, schedule) of its grid, schedule -> µs of the best in overlap."""
    template, call = kernel(case)
    schedules = grid(template, call, count)
    apart = timer.timed(template, call, [s for s, _ in schedules.values()])
    best = [schedules[text][0] for text in sorted(apart, key=apart.__getitem__)[:held]]
    constant = replace(call, constant=frozenset(template.operands) - {"x"})
    return {
        "case": case, "limit_us": bytes_of(call) / GPU.bytes_per_us, "grid": len(schedules),
        "apart": sorted((us, schedules[text][1], text) for text, us in apart.items()),
        "held": timer.timed(template, constant, best) if best else {},
    }  # fmt: skip


def shown(row: Mapping[str, Any]) -> str:
    """The best schedules of a row as text."""
    lines = [f"{row['case']}: limit {row['limit_us']:.1f} µs, {len(row['apart'])} of {row['grid']} timed"]
    for us, model, text in row["apart"][:SHOWN]:
        lines.append(f"  {us:6.2f}  held {row['held'].get(text, math.nan):6.2f}  model {model:6.2f}  {text}")
    return "\n".join(lines)


def main() -> None:
    """Time the grids of the cases named on the command line, or of all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", help="cases that contain one of these texts")
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--held", type=int, default=HELD)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    timer, rows = GridTimer(), []
    with timer.measurer:
        for case in CASES:
            if not options.cases or any(text in case for text in options.cases):
                rows.append(figures(case, timer, options.count, options.held))
                print(shown(rows[-1]), flush=True)
                if options.out is not None:
                    options.out.write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
