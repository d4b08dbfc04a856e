"""Flops and compulsory memory traffic of a kernel call: the input of the roofline."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from ...egraph.ir.builders import input as placeholder
from ...egraph.ir.dims import concrete
from ...egraph.ir.graph import Tensor, topological
from .kernel import Call, Template
from .meaning import output_terms


def node_flops(node: Tensor) -> float:
    """Flops of one node: 2 per multiply-add of a contraction, the op table's count per element elsewhere."""
    out = prod(concrete(node.shape))
    if node.op in ("matmul", "linear"):
        return 2.0 * out * concrete(node.args[0].shape)[-1]
    if node.op == "conv":
        return 2.0 * out * prod(concrete(node.args[1].shape)[1:])
    if node.op == "recurrent":
        steps, batch, _ = concrete(node.args[0].shape)
        return 2.0 * steps * batch * prod(concrete(node.args[2].shape))
    if node.op in ("attention", "masked_attention"):
        q, k = concrete(node.args[0].shape), concrete(node.args[1].shape)
        rows = prod(concrete(node.shape)[:-2])
        return (
            2.0
            * rows
            * attended_pairs(q[-2], k[-2], node.attr("causal"), node.attr("window"))
            * (q[-1] + concrete(node.shape)[-1])
        )
    if node.op in ("max_pool", "avg_pool"):
        return float(out * prod(node.attr("kernel")))
    if node.entry.kind in ("view", "leaf"):
        return 0.0
    larger = max([out, *(prod(concrete(a.shape)) for a in node.args)]) if node.entry.kind != "index" else out
    return float(larger) * node.entry.flops


def attended_pairs(rows: int, columns: int, causal: bool, window: int) -> float:
    """Number of (row, column) pairs of scores that attention computes.

    `causal`: each row up to its diagonal, aligned at the last position. `window`: only the last `window` columns of
    these (0: all).
    """
    if not causal and not window:
        return float(rows * columns)
    ends = np.arange(rows) + columns - rows + 1 if causal else np.full(rows, columns)
    begins = np.arange(rows) + columns - rows + 1 - window if window else np.zeros(rows, np.int64)
    return float((np.clip(ends, 0, columns) - np.clip(begins, 0, columns)).clip(0).sum())


def graph_flops(roots: list[Tensor]) -> float:
    """Flops of all nodes below the roots, each counted once."""
    return float(sum(node_flops(n) for n in topological(roots) if not n.is_leaf))


def call_work(template: Template, call: Call) -> tuple[float, float]:
    """Work of one kernel call as (flops, bytes): each operand is read once and each output written once.

    Gathers read only the gathered elements, and scatters into an operand write only the updates. Flops are scaled to
    the rate of the operands' dtype (`Template.rate`).
    """
    if template.family == "copy":
        return 0.0, 2.0 * call.output.type.nbytes
    read = {o: float(call.operands[o].type.nbytes) for o in template.operands}
    written = [float(o.type.nbytes) for o in call.outputs]
    if template.flops is not None and not any(op in template.pattern for op in ("gather", "scatter")):
        return template.flops(call) / template.rate, sum(read.values()) + sum(written)
    roots = output_terms(template, call, placeholder)
    for name, picked in _picked(roots).items():
        itemsize = call.operands[name].type.nbytes // max(1, prod(concrete(call.operands[name].type.shape)))
        read[name] = min(read[name], float(picked * itemsize))
    for n, base in written_into(roots).items():
        updates, whole = (prod(concrete(roots[n].args[i].shape)) for i in (2, 0))
        read[base], written[n] = 0.0, written[n] * updates / max(1, whole)
    flops = template.flops(call) if template.flops is not None else graph_flops(roots)
    return flops / template.rate, sum(read.values()) + sum(written)


def written_into(roots: Sequence[Tensor]) -> dict[int, str]:
    """Outputs that a kernel writes into an operand (scatter): output index -> name of the operand."""
    return {
        n: str(t.args[0].attr("name"))
        for n, t in enumerate(roots)
        if t.op == "scatter_elements" and t.args[0].op in ("input", "param")
    }


def _picked(roots: Sequence[Tensor]) -> dict[str, int]:
    """Input name -> number of elements read, for inputs used only by gathers."""
    picked: dict[str, int] = {}
    other: set[str] = set()
    for node in topological(roots):
        for i, a in enumerate(node.args):
            if a.op != "input":
                continue
            if i == 0 and node.op in ("gather", "gather_elements"):
                picked[a.attr("name")] = picked.get(a.attr("name"), 0) + prod(concrete(node.shape))
            else:
                other.add(a.attr("name"))
    return {name: size for name, size in picked.items() if name not in other}
