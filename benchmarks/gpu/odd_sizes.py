"""Matrix products whose rows are not aligned to 16 bytes: `python -m benchmarks.gpu.odd_sizes [--only NAME ...]
[--render]`.

Each product runs in a process of its own, in several variants: cuBLAS over the weight as it is; cuBLAS over a weight
padded to multiples of 16 bytes, with the padded result and with a copy of its valid part; our program of all kernels,
of generated kernels, and of Triton kernels only. Results are checked against float64, and all are replayed in turn as
in `workloads.py`. Records are in results/raw/gpu_odd_sizes.json; results/gpu_odd_sizes.md is made from them. Further
options are those of `variants.py`.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.gpu.case import Case, Record
from benchmarks.gpu.suite import Suite
from benchmarks.gpu.table import how
from benchmarks.gpu.variants import shortened
from benchmarks.models.variant import Of, Variant

EVEN = 8  # numbers of 16 bits in 16 bytes
COLUMNS = {
    "eager": "cuBLAS µs",
    "padded": "over a padded weight",
    "padded, copied": "and copied",
    "ours": "ours",
    "generated": "generated only",
    "triton": "Triton only",
}


def multiplied(rows: int, inner: int, columns: int) -> tuple[Of, dict[str, tuple[int, int]]]:
    """Module and input of a product of [rows, inner] with a weight [inner, columns]."""
    return Of(torch.matmul, w=(inner, columns)), {"x": (rows, inner)}


def products(*sizes: tuple[int, int, int]) -> dict[str, Variant]:
    """Variants of bfloat16 products, by a name made of their sizes (rows, inner, columns)."""
    return {
        name: Variant(name, partial(multiplied, *found), {}, torch.bfloat16)
        for found in sizes
        for name in ["x".join(map(str, found))]
    }


PRODUCTS = products((1000, 768, 50257), (2048, 4096, 4099), (16, 2048, 50257), (128, 640, 1003))
TINY = dict(zip(PRODUCTS, products((20, 16, 37), (24, 32, 19), (2, 16, 45), (5, 16, 11)).values()))


class Product(Case):
    """A product measured in this process."""

    def padded(self) -> None:
        """Add cuBLAS over weights padded beforehand: with the padded result, and with a copy of its part without
        padding.
        """
        weights = [F.pad(w, (0, -w.shape[1] % EVEN)) for _, w in self.sets]

        def narrowed(x: Tensor, weight: Tensor, columns: int) -> Tensor:
            return torch.matmul(x, weight)[:, :columns]

        def copied(x: Tensor, weight: Tensor, columns: int) -> Tensor:
            return narrowed(x, weight, columns).contiguous()

        for name, call in {"padded": narrowed, "padded, copied": copied}.items():
            with self.variant(name) as found:
                self.add(name, found, [partial(call, x, p, w.shape[1]) for (x, w), p in zip(self.sets, weights)])


def measured(case: Product) -> None:
    """Measure all variants of one product."""
    with torch.no_grad():
        case.eager()
        case.padded()
    case.ours(("ours", "generated", "triton"))
    case.time()


def line(record: Record) -> str:
    """A record as one row of the table."""
    variants: dict[str, Any] = record["variants"]
    us = [
        f"{v['us']:.1f}" if "us" in (v := variants.get(n, {})) else "failed" if "failed" in v else "" for n in COLUMNS
    ]
    errors = " / ".join(f"{variants[n]['error']:.1e}" for n in ("ours", "eager") if "error" in variants.get(n, {}))
    cells = [record["name"].replace("x", "×"), f"{record.get('limit_us') or 0.0:.1f}", *us, errors]
    return f"| {' | '.join([*cells, how(variants.get('ours', {})) or record.get('failed', '')])} |"


def render(records: dict[str, Record]) -> str:
    """The table of these records as Markdown."""
    found = [records[n] for n in PRODUCTS if n in records]
    head = ("rows × sum × columns", "limit µs", *COLUMNS.values(), "error ours / eager", "our kernels")
    machines = dict.fromkeys(
        f"- {r['machine']}, {r['toolchain']}, budget {r.get('budget', 0):g} s; commit {r['commit']}"
        for r in found if "machine" in r
    )  # fmt: skip
    legend = (
        "bfloat16, µs a call: median of replays of CUDA graphs over rotating arguments, more than five times the L2 cache, in turn. "
        "Weights are padded before the time begins. The limit is the larger of compulsory bytes over measured bandwidth and arithmetic "
        "over the measured rate."
    )
    return "\n".join([
        "# Products of odd sizes on a GPU", "", f"| {' | '.join(head)} |", "|" + "---|" * len(head), *map(line, found),
        "", legend, "", *machines,
    ]) + "\n"  # fmt: skip


SUITE = Suite("gpu_odd_sizes", "odd_sizes", PRODUCTS, TINY, Product, measured, shortened, line, render, budget=12.0)

if __name__ == "__main__":
    sys.exit(SUITE.main(__doc__))
