"""Finds the integers of a term that say how many positions are visible, such as the number of tokens in a key-value
cache: a mask compares them with positions, and kernels end their loops there."""

from __future__ import annotations

from collections.abc import Sequence

from ..types import dtypes
from ..types.dims import concrete
from .tensor import Tensor

#: Integer arithmetic that a place may pass through before it is compared.
ARITHMETIC = {"add", "sub", "mod", "minimum", "maximum"}


def visible_places(nodes: Sequence[Tensor], kinds: Sequence[str]) -> dict[str, int]:
    """Name of each leaf of the `kinds` that is compared (`lt`, `le`) with positions (`iota`) -> number of positions.

    Views, casts between integers and `ARITHMETIC` may lie between. `nodes`: in topological order, of known sizes. The
    number is one more than the limit on the leaf (`minimum`) if it has one, else the size of the axis of positions.
    """
    compared, limits = _compared(nodes, kinds)
    sizes = {name: max(concrete(n.shape)[n.attr("axis")] for n in iotas) for name, iotas in compared.items()}
    return {name: limits.get(name, size) for name, size in sizes.items()}


def has_limited_places(nodes: Sequence[Tensor], kinds: Sequence[str]) -> bool:
    """Whether any of `visible_places` has a limit; sizes of axes may be free."""
    if not any(n.op == "minimum" and dtypes.category(n.dtype) == "int" for n in nodes):
        return False
    compared, limits = _compared(nodes, kinds)
    return not compared.keys().isdisjoint(limits)


def _compared(nodes: Sequence[Tensor], kinds: Sequence[str]) -> tuple[dict[str, set[Tensor]], dict[str, int]]:
    """By name of a leaf: the positions that it is compared with, and one more than the least limit on it."""
    leaves: dict[Tensor, frozenset[str]] = {}
    positions: dict[Tensor, frozenset[Tensor]] = {}
    compared: dict[str, set[Tensor]] = {}
    limits: dict[str, int] = {}
    for node in nodes:
        names = frozenset[str]().union(*[leaves.get(a, ()) for a in node.args])
        iotas = frozenset[Tensor]().union(*[positions.get(a, ()) for a in node.args])
        if node.op in ("lt", "le"):
            for name in names if iotas else ():
                compared.setdefault(name, set()).update(iotas)
        elif dtypes.category(node.dtype) != "int":
            continue
        elif node.op in kinds:
            leaves[node] = frozenset((str(node.attr("name")),))
        elif node.op == "iota":
            positions[node] = frozenset((node,))
        elif node.entry.moves or node.op == "cast" or node.op in ARITHMETIC:
            leaves[node], positions[node] = names, iotas
            if node.op == "minimum" and not iotas and (limit := _constant(node)) is not None:
                limits |= {name: min(limit + 1, limits.get(name, limit + 1)) for name in names}
    return compared, limits


def _constant(node: Tensor) -> int | None:
    """The natural number that is an operand of a node, behind views; None if no operand is one."""
    for value in node.args:
        while value.entry.moves and len(value.args) == 1:
            value = value.args[0]
        if value.op == "full" and value.attr("value") >= 0:
            return int(value.attr("value"))
    return None


__all__ = ["has_limited_places", "visible_places"]
