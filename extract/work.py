"""How much arithmetic and memory traffic a kernel call cannot avoid: the input of the roofline."""

from __future__ import annotations

from math import prod

from ..egraph.api import input as placeholder
from ..egraph.dims import concrete
from ..egraph.graph import Tensor, topological
from ..egraph.pattern import build
from .kernel import Call, Template


def node_flops(node: Tensor) -> float:
    """Arithmetic of one node: products and sums of a contraction, the op table's count per element elsewhere."""
    out = prod(concrete(node.shape))
    if node.op in ("matmul", "linear"):
        return 2.0 * out * concrete(node.args[0].shape)[-1]
    if node.op == "conv":
        return 2.0 * out * prod(concrete(node.args[1].shape)[1:])
    if node.op in ("attention", "masked_attention"):
        q, k = concrete(node.args[0].shape), concrete(node.args[1].shape)
        return 2.0 * out * k[-2] + 2.0 * prod(concrete(node.shape)[:-1]) * k[-2] * q[-1]
    if node.op in ("max_pool", "avg_pool"):
        return float(out * prod(node.attr("kernel")))
    if node.entry.kind in ("view", "leaf"):
        return 0.0
    larger = max([out, *(prod(concrete(a.shape)) for a in node.args)]) if node.entry.kind != "index" else out
    return float(larger) * node.entry.flops


def graph_flops(roots: list[Tensor]) -> float:
    """Arithmetic of all nodes below the roots, each once."""
    return float(sum(node_flops(n) for n in topological(roots) if not n.is_leaf))


def call_work(template: Template, call: Call) -> tuple[float, float]:
    """(flops, bytes) of one call: every operand read once and the output written once; a gather reads what it picks."""
    operands = {o: placeholder(o, call.operands[o].type.shape, call.operands[o].type.dtype) for o in template.operands}
    if template.family == "copy":
        return 0.0, 2.0 * call.output.type.nbytes
    root = build(template.term, operands, call.attrs)
    flops = template.flops(call) if template.flops else graph_flops([root])
    picked = root.args[0] if root.op in ("gather", "gather_elements") else None
    read = sum(t.type.nbytes for t in operands.values() if t is not picked)
    return flops, float(read + (2 if picked is not None else 1) * call.output.type.nbytes)
