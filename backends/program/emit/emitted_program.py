"""Holds the result of emission: a program's source with its weights, states and memory plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ....egraph.ir.tensor import Tensor
from ....egraph.ops.ops import Type
from . import memory_plan as memory


@dataclass(frozen=True)
class EmittedProgram:
    """Emitted source of a program, with the weights, states and memory that it needs.

    `weights`: weight key -> term to evaluate. `states`: name of a state (memory kept between calls) -> type. `layout`:
    memory plan of the workspace. `fresh_bytes`: peak of the memory that a call allocates besides. `plain`: keys of
    weights that must be row-major.
    """

    source: str
    weights: Mapping[str, Tensor]
    states: Mapping[str, Type]
    layout: memory.Layout
    fresh_bytes: int  # peak allocation of `run`: outputs and results that kernels allocate
    # keys of weights that kernels read unpacked; all others are only packed at load
    plain: frozenset[str] = frozenset()
