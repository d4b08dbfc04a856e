"""Chains of a layer's kernels: every operand has a place of its size."""

from __future__ import annotations

from math import prod

import pytest
from benchmarks.decoding.layer_chain import CHAINS, OWN, made, schedules


@pytest.mark.parametrize("name", ["gemma", "llama-8b int4, norms apart"])
def test_kernels_of_a_chain_read_what_others_write(name: str) -> None:
    layers, _ = CHAINS[name]
    links = made(name)
    sizes = {"at": 1}
    for link, template, call in links:
        assert set(link.operands) == set(template.operands) and len(link.results) == len(call.outputs)
        sizes |= {p: prod(o.type.shape) for p, o in zip(link.results, call.outputs, strict=True) if p[0] != "="}  # type: ignore[arg-type]
    for index, (link, _, call) in enumerate(links):
        for operand, place in link.operands.items():
            buffer, *ends = place.split(":")
            size = prod(call.operands[operand].type.shape)  # type: ignore[arg-type]
            if ends:
                assert int(ends[1]) - int(ends[0]) == size and int(ends[1]) <= sizes[buffer]
            elif place not in (OWN, "cos", "sin"):
                assert sizes[buffer] == size
        assert schedules(name, index, 2) and layers > 1
