"""Running a program on named values, for verification and timing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..backends.program.program import Program
from ..backends.runtime.marshalling import is_torch
from ..egraph.ir.graph import Graph


def renamed(graph: Graph, work: Graph) -> Graph:
    """`work`, the graph that `graph` was optimized to, with the names and the result structure of `graph` (the
    signature of a program).
    """
    return replace(work, names=graph.names, structure=graph.structure, name=graph.name)


def run_flat(program: Program, values: Mapping[str, Any]) -> list[Any]:
    """Run a program on named inputs and states; returns its outputs, then its updated states, as a flat list.

    Returns tensors on the program's device if any of `values` is a tensor, else arrays.
    """
    program.bind()
    for name in program.states:
        if name in values:  # a state that is only written has no value before
            program.set_state(name, values[name])
    results = program.flat(*(values[n] for n in program.input_names))
    updated = list(program.plan.updates) if program.plan else []
    if not any(map(is_torch, values.values())):
        return [*results, *map(program.get_state, updated)]
    program.wait(f"running {program.manifest.name}")
    return [*results, *(program.states[n].clone() for n in updated)]


__all__ = ["renamed", "run_flat"]
