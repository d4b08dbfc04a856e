"""Resets a program's states for timing: the number of visible positions, such as that of tokens in a key-value cache,
is the largest one.

With the initial one, usually 0, attention over a cache would read a single position, and plans would be chosen that are
slow over others. Kernels are measured with the largest number as well (backends/tuning/gpu_operands.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...backends.program.program import Program
from ...egraph.evaluate.interpret import expand_all
from ...egraph.ir.places import visible_places
from ...egraph.ir.tensor import topological


def full_states(programs: Sequence[Program]) -> Callable[[], None]:
    """Function that resets the states of programs of one size, and sets those that are numbers of visible positions
    (`visible_places`) to their largest values. States that advance with each call would run past their end."""
    resets = state_resets(programs)

    def reset() -> None:
        for one in resets:
            one()

    return reset


def state_resets(programs: Sequence[Program]) -> list[Callable[[], None]]:
    """For each of some programs of one graph: the function of `full_states` for it alone."""
    known: list[tuple[object, dict[str, np.ndarray[Any, Any]]]] = []

    def reset_of(program: Program) -> Callable[[], None]:
        states = program.manifest.states
        if not states:
            return lambda: None
        kind = states, program.manifest.sizes, program.plan is None
        values = next((v for k, v in known if k == kind), None)
        if values is None:  # a search through the graph
            values = _places(program)
            known.append((kind, values))

        def reset() -> None:
            program.reset()
            for name, value in values.items():
                program.set_state(name, value)

        return reset

    return [reset_of(p) for p in programs]


def _places(program: Program) -> dict[str, np.ndarray[Any, Any]]:
    """The largest values of the states that are numbers of visible positions, by name."""
    if not program.manifest.states or program.manifest.sizes or program.plan is None:
        return {}
    counts = visible_places(topological(expand_all(program.plan.graph.roots)), ("state",))
    return {n: np.full(shape, counts[n] - 1, dtype) for n, shape, dtype in program.manifest.states if n in counts}


__all__ = ["full_states", "state_resets"]
