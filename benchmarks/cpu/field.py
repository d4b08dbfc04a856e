"""The benchmark models of earlier optimizers (TASO, Tensat) rebuilt as graphs: ours against the unoptimized graph on
the same backend, against eager PyTorch, and against what this CPU's bandwidth and arithmetic allow."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import tensor_graphs as tg
from benchmarks.models.taso import load_field_json
from tensor_graphs.backends.program.program import Program
from tensor_graphs.backends.registry import select
from tensor_graphs.backends.tuning.unfused import direct_plan

from ..common import BUDGET, data, error, in_turn, row, set_threads, short
from .bounds import bound, roofline
from .torch_eager import eager, random_inputs

MODELS = {"nasrnn": "NasRNN", "bert_tensat": "BERT (Tensat)", "squeezenet": "SqueezeNet", "resnet50": "ResNet-50"}


def main() -> dict[str, Any]:
    """Result for the figures: one row per model."""
    set_threads()
    line = roofline()
    rows, details = [], {"roofline": {"flops_per_us": line.flops_per_us, "bytes_per_us": line.bytes_per_us}}
    for name, title in MODELS.items():
        found = measure(data(f"models/{name}.json"), line)
        ms, least = {k: v["ms"] for k, v in found["times"].items()}, found["bound"]
        ours = ms["ours"]
        verdict = found["report"]["verification"]
        rows.append(
            row(f"{title}, rebuilt", "> 1 over unoptimized and over eager, verified",
                f"{ours:.2f} ± {found['times']['ours']['mad_ms']:.2f} ms: {ms['unoptimized'] / ours:.2f}x over unoptimized "
                f"({ms['unoptimized']:.2f} ms), {ms['eager'] / ours:.2f}x over eager PyTorch ({ms['eager']:.2f} ms); "
                f"{100 * least['ms'] / ours:.0f} % of its bound {least['ms']:.2f} ms ({least['kind']}); "
                f"verified: {verdict['passed']}, error {verdict['error_after']:.1e} (before {verdict['error_before']:.1e})",
                bool(verdict["passed"]) and min(ms["unoptimized"], ms["eager"]) > ours)
        )  # fmt: skip
        details[name] = found
    return {"rows": rows, "details": details}


def measure(path: Path, line: Any) -> dict[str, Any]:
    """Figures of one model: optimized, checked against eager PyTorch in float64, and timed in turn with the others."""
    import torch

    graph = load_field_json(path)
    program = tg.optimize(graph, budget=BUDGET)
    before = Program(replace(direct_plan(graph, list(reversed(select("auto")))), graph=graph))
    plain = eager(graph)
    values = random_inputs(graph)
    tensors = [torch.from_numpy(v) for v in values]
    exact = [y.numpy() for y in eager(graph, torch.float64)(*[x.double() for x in tensors])]
    errors = {
        "ours": max(map(error, program.flat(*values), exact)),
        "unoptimized": max(map(error, before.flat(*values), exact)),
        "eager": max(error(y.numpy(), e) for y, e in zip(plain(*tensors), exact)),
    }
    calls = {
        "eager": lambda: plain(*tensors),
        "unoptimized": lambda: before.flat(*values),
        "ours": lambda: program.flat(*values),
    }
    least = bound(graph, line)
    kind = "flops" if least.flops_ms >= least.bytes_ms else "bytes"
    return {
        "times": in_turn(calls, seconds=6.0), "errors": errors, "report": short(program.report),
        "bound": {"ms": least.ms, "kind": kind, "flops": least.flops, "bytes": least.bytes},
    }  # fmt: skip
