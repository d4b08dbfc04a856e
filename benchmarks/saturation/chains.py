"""Matrix chains, written from left to right: does extraction find the order with the fewest multiplications?

All matrices are inputs, so nothing is folded. Kernels are priced by their arithmetic alone, with the NumPy backend and
one library product per kernel; what is compared is the number of multiplications of the chosen products.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

import tensor_graphs.egraph.builders.builders as t
from tensor_graphs.backends.registry import backend
from tensor_graphs.backends.runtime.views import view_strides
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.saturate.saturate import Limits, saturate_blocks
from tensor_graphs.egraph.types.dims import concrete
from tensor_graphs.extract.candidates.candidates import candidate_hypergraph
from tensor_graphs.extract.model.kernel import Candidate
from tensor_graphs.extract.model.pricing import Priced, PricerBase
from tensor_graphs.extract.model.work import call_work
from tensor_graphs.extract.search.search import search
from tensor_graphs.rules import ALL

from ..common import QUICK, data, row

NEEDED = ("2mm", "3mm", "10mm")
LIMITS = {
    "default": Limits(),
    "rounds 30": Limits(iterations=30, seconds=30),
    "rounds 30, nodes 100k": Limits(iterations=30, seconds=60, nodes=100_000),
}


class Arithmetic(PricerBase):
    """Pricer whose price of a kernel is its number of multiplications."""

    def price(self, found: Sequence[Candidate]) -> list[Priced]:
        """The price of each candidate."""
        costs = [call_work(c.template, c.call)[0] / 2 for c in found]
        return [Priced(c, c, c, "bound") for c in costs]


def chain(dims: Sequence[int]) -> Graph:
    """Graph of ((m0 @ m1) @ m2) @ …, where matrix k is [dims[k], dims[k + 1]]."""
    product = t.input("m0", (dims[0], dims[1]))
    for k in range(1, len(dims) - 1):
        product = product @ t.input(f"m{k}", (dims[k], dims[k + 1]))
    return Graph.of(product, name="chain")


def solve(graph: Graph, limits: Limits, slack: int | None, guard: bool) -> dict[str, Any]:
    """Number of multiplications of the best plan in the e-graph, and why saturation ended."""
    start = time.perf_counter()
    view = saturate_blocks([graph], list(ALL), limits, slack=slack, guard=guard)[0]
    middle = time.perf_counter()
    found = candidate_hypergraph(view, [backend("numpy")], view_strides)
    choice = search(found, Arithmetic())
    products = [found.candidates[i] for i in choice.chosen if found.candidates[i].template.family == "contraction"]
    multiplications = sum(
        concrete(c.call.operands[o].type.shape)[-1] * concrete(c.call.output.type.shape)[0] * concrete(c.call.output.type.shape)[-1]
        for c in products for o in c.template.operands[:1]
    )  # fmt: skip
    return {
        "mults": multiplications, "stopped": view.report.stopped, "rounds": view.report.iterations, "e_nodes": len(view),
        "seconds": {"saturate": middle - start, "extract": time.perf_counter() - middle}, "optimal": choice.extraction.optimal,
    }  # fmt: skip


def main() -> dict[str, Any]:
    """Result for the figures: one row per chain, at the default limits, and at the first wider ones that reach the
    optimum.
    """
    rows, details = [], {}
    for name, chained in json.loads(data("programs/matrix_chains.json").read_text())["chains"].items():
        graph, best = chain(chained["dims"]), chained["mults_optimal_dp"]
        tried: dict[str, Any] = {}
        for label, limits in LIMITS.items():
            tried[label] = solve(graph, limits, None, True)
            if tried[label]["mults"] == best or QUICK:
                break
        if tried[label]["mults"] != best and not QUICK:
            tried["no guard"] = solve(graph, Limits(iterations=30, seconds=60, nodes=100_000), None, False)
        first, label = tried["default"], min(tried, key=lambda k: tried[k]["mults"])
        text = (
            f"{first['mults']:,} of {chained['mults_left_assoc']:,} as written ({first['stopped']} after {first['rounds']} rounds, "
            f"{first['e_nodes']} e-nodes, {sum(first['seconds'].values()):.1f} s)"
        )
        if label != "default":
            text += f"; with {label}: {tried[label]['mults']:,}"
        required = f"{best:,} multiplications" if name in NEEDED else f"reported (optimum {best:,})"
        rows.append(row(f"matrix chain {name}", required, text, first["mults"] == best if name in NEEDED else None))
        details[name] = tried
    return {"rows": rows, "details": details}
