"""Makes some rows, columns and blocks of a verification input zero, small or of one sign, masks empty or full;
for a graph that decides by whole tensors, whole inputs.

Random elements hardly ever are all zero, all positive or all masked along an axis, so that a program could be wrong
there: a norm of a row of padding, the scale of a channel that is zero, a row that a mask hides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...egraph.ir.graph import Graph
from ...egraph.types.dims import volume

LARGEST = 1 << 24  # elements of an input of which lines are made uniform
EVERY = 128  # one line of each kind among so many

#: Kind of a line -> function of its elements, an array or tensor.
KINDS: dict[str, Callable[[Any], Any]] = {
    "zero": lambda x: x * 0, "small": lambda x: x * 2.0**-20, "positive": lambda x: abs(x) + (x == 0),
    "negative": lambda x: -(abs(x) + (x == 0)), "false": lambda x: x & False, "true": lambda x: x | True,
}  # fmt: skip


#: What all elements of the floats and integers, and of the bools, are in the inputs after the third.
WHOLE = (("positive", "true"), ("negative", "false"), ("zero", "false"), ("equal", "true"))
_SMALL = 1 << 16  # elements of all values of a graph that is verified on `WHOLE`, too


def decides_by_whole_tensors(graph: Graph) -> bool:
    """Whether a graph, which is small, computes a truth value from all elements of a tensor: `all(x > 0)`."""
    nodes = graph.nodes()
    sizes = [[d for d in n.shape if isinstance(d, int)] for n in nodes]
    if len(nodes) > 1000 or any(len(s) < n.rank for n, s in zip(nodes, sizes)) or sum(map(math.prod, sizes)) > _SMALL:
        return False
    whole = [n for n in nodes if n.args and volume(n.shape) == 1]
    return any(n.dtype == "bool" for n in whole) and any(volume(a.shape) != 1 for n in whole for a in n.args)


def make_whole_uniform(x: Any, kinds: Sequence[str], turn: int) -> None:
    """Change an array or tensor in place to the values of input number `turn`, from 3 on; `kinds`: the kinds of lines
    that it may have, none if its values must stay as they are."""
    kind = WHOLE[(turn - 3) % len(WHOLE)][any(k in ("false", "true") for k in kinds)]
    if kind == "equal":
        x[...] = x.reshape(-1)[:1] if math.prod(x.shape) else x
    elif kind in kinds:
        x[...] = KINDS[kind](x)


def make_lines_uniform(x: Any, kinds: Sequence[str], rng: np.random.Generator) -> None:
    """Change an array or tensor in place: of the lines along each axis, and of the blocks of its last axes, one in
    EVERY is made of each kind, at least one where there are three for each kind."""
    rank = len(x.shape)
    blocks = [tuple(range(first, rank)) for first in range(1, rank)]
    for axes in [*((axis,) for axis in range(rank - 1)), *blocks] if math.prod(x.shape) <= LARGEST else ():
        _make_uniform(x, axes, kinds, rng)


def _make_uniform(x: Any, axes: tuple[int, ...], kinds: Sequence[str], rng: np.random.Generator) -> None:
    """Make lines that span `axes` uniform."""
    others = [i for i in range(len(x.shape)) if i not in axes]
    sizes = [x.shape[i] for i in others]
    count = int(np.prod(sizes))
    each = max(count // EVERY, 1)
    if count < 3 * len(kinds):
        return
    chosen = rng.choice(count, each * len(kinds), replace=False)
    for k, kind in enumerate(kinds):
        places = dict(zip(others, np.unravel_index(chosen[k * each : (k + 1) * each], sizes)))
        at = tuple(places.get(i, slice(None)) for i in range(len(x.shape)))
        x[at] = KINDS[kind](x[at])


__all__ = ["WHOLE", "decides_by_whole_tensors", "make_lines_uniform", "make_whole_uniform"]
