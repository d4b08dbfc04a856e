"""Names of a model's layers, from the names of its weights: `blocks.0.attn.qkv.weight` belongs to `blocks.0.attn.qkv`.

An operation on weights belongs to the layer whose weights it reads, any other one to the layer that contains its nearest
operations with weights before and after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ..egraph.ir.graph import Graph, Tensor

WEIGHTS = ("param", "constant", "full")
MOST_NEAR = 8  # nearest layers of an operation in one direction, above which only what contains them all is kept


def layers_of(graph: Graph) -> dict[Tensor, str]:
    """Layer of each operation of a graph that has one; operations on weights alone and inputs have none."""
    nodes = graph.nodes()
    held = weight_names(nodes)
    found = {n: layer for n in nodes if n not in held and (layer := common(map(_layer, _read(n, held))))}
    before = _nearest(nodes, {n: n.args for n in nodes}, found)
    users: dict[Tensor, list[Tensor]] = {n: [] for n in nodes}
    for n in nodes:
        for a in n.args:
            users[a].append(n)
    after = _nearest(nodes[::-1], users, found)
    for n in nodes:
        near = [*before[n], *after[n]]
        if n not in found and n not in held and n.args and before[n] and after[n] and (layer := common(near)):
            found[n] = layer
    return found


def weight_names(nodes: Sequence[Tensor]) -> dict[Tensor, tuple[str, ...]]:
    """Nodes (operands first) that depend on weights and numbers alone, with the names of these weights."""
    found: dict[Tensor, tuple[str, ...]] = {}
    for n in nodes:
        if n.op == "param":
            found[n] = (str(n.attr("name")),)
        elif n.op in WEIGHTS or (n.args and all(a in found for a in n.args)):
            found[n] = tuple(dict.fromkeys(name for a in n.args for name in found[a]))
    return found


def common(layers: Iterable[str]) -> str:
    """The innermost layer that contains all given ones; "" if there is none."""
    names = [layer.split(".") for layer in layers]
    if not names:
        return ""
    least, most = min(names), max(names)
    same = next((i for i, (a, b) in enumerate(zip(least, most)) if a != b), min(len(least), len(most)))
    return ".".join(least[:same])


def _read(node: Tensor, held: Mapping[Tensor, tuple[str, ...]]) -> list[str]:
    return [name for a in node.args for name in held.get(a, ()) if _layer(name)]


def _layer(weight: str) -> str:
    return weight.rpartition(".")[0]


def _nearest(
    nodes: Sequence[Tensor], next_to: Mapping[Tensor, Sequence[Tensor]], found: Mapping[Tensor, str]
) -> dict[Tensor, tuple[str, ...]]:
    """Layers of the nearest operations that have one, in one direction; `nodes` in this direction."""
    near: dict[Tensor, tuple[str, ...]] = {}
    for n in nodes:
        reached = dict.fromkeys(x for m in next_to[n] for x in ((found[m],) if m in found else near[m]))
        near[n] = tuple(reached) if len(reached) <= MOST_NEAR else (common(reached),)
    return near


__all__ = ["layers_of", "weight_names"]
