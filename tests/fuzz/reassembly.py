"""The whole graph rebuilt from its blocks."""

from __future__ import annotations

from tensor_graphs.egraph.blocks.blocks import Blocks, stamp
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.ir.tensor import Tensor


def reassemble(blocks: Blocks) -> Graph:
    """Rebuild the whole graph from the blocks' bodies; identical to `blocks.graph`, node by node."""
    known: dict[Tensor, Tensor] = {}
    for instance in blocks.instances:
        body = blocks.unique[instance.block].graph
        for value, made in zip(instance.outputs, stamp(body, instance, known), strict=True):
            known[value] = made
    return blocks.graph.with_roots([known.get(r, r) for r in blocks.graph.roots])
