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
    places = [_places(p) for p in programs]

    def reset() -> None:
        for program, values in zip(programs, places, strict=True):
            if program.manifest.states:
                program.reset()
            for name, value in values.items():
                program.set_state(name, value)

    return reset


def _places(program: Program) -> dict[str, np.ndarray[Any, Any]]:
    """The largest values of the states that are numbers of visible positions, by name."""
    if not program.manifest.states or program.manifest.sizes or program.plan is None:
        return {}
    counts = visible_places(topological(expand_all(program.plan.graph.roots)), ("state",))
    return {n: np.full(shape, counts[n] - 1, dtype) for n, shape, dtype in program.manifest.states if n in counts}


__all__ = ["full_states"]
