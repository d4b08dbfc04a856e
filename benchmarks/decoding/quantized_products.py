"""Products with quantized weights: `python -m benchmarks.decoding.quantized_products [--backend B] [--budget S] [--only
SHAPE ...] [--out FILE]`.

Each case is one product x @ W.T of a decode step, W in bfloat16 (float32 with --dtype) or quantized (int8, int4: groups
of 128; fp8: a scale a row). Columns: µs of the plan's kernels (cold caches), GB/s over the bytes of the weight as
stored, times faster than 16 bits, kernels of the plan and the storage that it reads, error against the dequantized
weights. A case that fails is a row with its error.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from collections.abc import Iterator
from typing import Any

import numpy as np

import tensor_graphs as tg
from tensor_graphs.egraph.types import dtypes
from tensor_graphs.models.common import quantization

#: name -> (columns, K)
SHAPES = {
    "8b-gate-up": (28672, 4096), "8b-down": (4096, 14336), "8b-qkv": (6144, 4096), "8b-o": (4096, 4096),
    "8b-head": (128256, 4096),
    "qwen-q": (896, 896), "qwen-gate": (4864, 896), "qwen-down": (896, 4864), "qwen-head": (151936, 896),
}  # fmt: skip
FORMS = ("plain", "int4", "int8", "fp8")


def case(shape: str, rows: int, form: str, options: argparse.Namespace) -> dict[str, Any]:
    """Figures of one product: x[rows, K] with the weight `shape` in `form`."""
    columns, size = SHAPES[shape]
    rng = np.random.default_rng(0)
    x = tg.input("x", (rows, size), options.dtype)
    weight = 0.02 * rng.standard_normal((columns, size), np.float32)
    if form == "plain":
        parts: dict[str, Any] = {"w": weight.astype(dtypes.numpy_dtype(options.dtype))}
        w = tg.param("w", weight.shape, options.dtype)
    else:
        parts = {f"w.{p}": v for p, v in quantization.encoded(weight, form, options.dtype).items()}
        q, scale = (tg.param(n, parts[n].shape, dtypes.name_of(parts[n].dtype)) for n in ("w.q", "w.scale"))
        w = quantization.dequantized(form, q, scale)
    begun = time.perf_counter()
    program = tg.optimize(
        x @ w.T, params=parts, budget=options.budget, backend=options.backend, measure=True, allow_caller=False
    )
    report = program.report
    held = sum(v.nbytes for v in parts.values())
    expanded = form != "plain" and not any("dequantize" in s.computes for s in report.steps)
    return {
        "shape": shape, "rows": rows, "form": form, "us": report.cost_us, "program_us": report.latency_after_us,
        "bytes": held, "gb_per_s": held / report.cost_us / 1e3 if report.cost_us else None, "storage": "16 bits" if expanded else form,
        "kernels": [f"{s.name} {s.us:.1f} {s.source}" for s in report.steps], "seconds": time.perf_counter() - begun,
        "report": str(report), "error": report.verification.get("error") if isinstance(report.verification, dict) else str(report.verification)[:100],
    }  # fmt: skip


def cases(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yields one row per case; its field `times` is relative to the plain weight of the same shape and rows."""
    plain: dict[tuple[str, int], float] = {}
    for rows in options.rows:
        for shape in options.only:
            for form in options.forms:
                try:
                    found = case(shape, rows, form, options)
                except Exception as error:
                    traceback.print_exc()
                    found = {
                        "shape": shape,
                        "rows": rows,
                        "form": form,
                        "failed": f"{type(error).__name__}: {error}"[:300],
                    }
                if form == "plain" and "us" in found:
                    plain[shape, rows] = found["us"]
                if found.get("us") and (shape, rows) in plain:
                    found["times"] = plain[shape, rows] / found["us"]
                yield found


def main() -> None:
    """Print rows as they are measured, and write them as JSON."""
    ask = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    ask.add_argument("--backend", default="auto")
    ask.add_argument("--budget", type=float, default=10.0)
    ask.add_argument("--dtype", default="bfloat16")
    ask.add_argument("--only", nargs="*", default=["8b-gate-up", "8b-down"])
    ask.add_argument("--rows", nargs="*", type=int, default=[1, 16])
    ask.add_argument("--forms", nargs="*", default=list(FORMS))
    ask.add_argument("--seconds", type=float, default=240.0, help="no case begins later")
    ask.add_argument("--out", default="")
    options = ask.parse_args()
    begun, rows = time.monotonic(), []
    for row in cases(options):
        rows.append(row)
        print(json.dumps(row), flush=True)
        if options.out:
            with open(options.out, "w", encoding="utf-8") as file:
                json.dump(rows, file, indent=1)
        if time.monotonic() - begun > options.seconds:
            print("the time is up", file=sys.stderr)
            break


if __name__ == "__main__":
    main()
