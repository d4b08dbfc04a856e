"""Kernels of repeated blocks: found in a few instances, they are those that every instance has."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tensor_graphs.backends.generate.lowerings import Lowerings
from tensor_graphs.backends.registry import backend
from tensor_graphs.egraph.blocks.blocks import find_blocks
from tensor_graphs.egraph.builders import builders as t
from tensor_graphs.egraph.composites import composite_ops as c
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.view.joined_view import join_blocks
from tensor_graphs.egraph.view.view import EGraphView, view_of
from tensor_graphs.extract.candidates.candidates import given_classes
from tensor_graphs.extract.fusion.repeated_blocks import RepeatedBlocks

WIDTH = 32


def network(layers: int, odd: int = -1) -> EGraphView:
    """Layers with a norm, a gate, a cache and a residual each over a mask that all read; layer `odd` has another
    gate."""
    x, at = t.input("x", (1, WIDTH)), t.state("at", (1, 1), "int64")
    seen, updates = t.where(t.le(t.iota((1, 16), 1), at), t.full((1, 1), 0.0), t.full((1, 1), -1.0)), {}
    for i in range(layers):
        weight = lambda n, i=i: t.param(f"{n}{i}", (WIDTH, WIDTH))
        h = c.rms_norm(x, t.param(f"g{i}", (WIDTH,)), eps=1e-6)
        gate = t.tanh(t.matmul(h, weight("a"))) if i == odd else c.silu(t.matmul(h, weight("a")))
        cache = t.state(f"s{i}", (16, WIDTH))
        updates[f"s{i}"] = t.scatter_elements(cache, t.broadcast_to(at, (1, WIDTH)), gate, 0)
        mixed = t.matmul(c.softmax(t.matmul(h, t.transpose(updates[f"s{i}"])) + seen, axis=1), updates[f"s{i}"])
        x = x + t.matmul(mixed * t.matmul(h, weight("b")), weight("c"))
    blocks = find_blocks(Graph.of(x, updates=updates))
    return join_blocks(blocks, [view_of(b.graph) for b in blocks.unique])


def test_instances_with_equal_surroundings_have_one_context() -> None:
    found = RepeatedBlocks.of(network(20, odd=5))
    assert len(found.blocks) > 20 and max(map(len, found.alike.values())) >= 3
    assert len(found.active) < len(found.blocks)
    plain = RepeatedBlocks.of(network(20))
    assert len(plain.active) < len(found.active)


def test_classes_of_an_instance_correspond_to_those_of_another() -> None:
    view = network(10)
    found = RepeatedBlocks.of(view)
    source, *others = max(found.alike.values(), key=len)
    for cls in (k for k in found.places[source] if k >= 0):
        for (moved,) in found.copies([cls]) if source in found.active else ():
            assert view.types[moved] == view.types[cls] and view.weight[moved] == view.weight[cls]
            ops = [sorted(view.op[n] for n in view.nodes_of(k)) for k in (cls, moved)]
            assert ops[0] == ops[1]
    assert others and source in found.active


@pytest.mark.parametrize("odd", [-1, 0])
def test_copied_kernels_are_those_that_each_instance_has(odd: int) -> None:
    """And a few more: of groups with equal results each layer keeps the best ones, of which there may be several."""
    view = network(12, odd)
    lowering: Any = backend("c").opened(Lowerings())

    def kernels(of: EGraphView) -> set[Any]:
        given = given_classes(of)
        return {(id(k), made, reads) for k, made, reads in lowering.generated(of, given, of.types)}

    alone, copied = kernels(replace(view, instances=())), kernels(view)
    assert alone <= copied and len(copied) < 1.1 * len(alone)
    assert len(RepeatedBlocks.of(view).active) < len(view.instances)
