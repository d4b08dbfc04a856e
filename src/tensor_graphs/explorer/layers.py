"""Names a model's layers by the module paths of the traced operations, else by the names of weights.

`blocks.0.attn.qkv.weight` belongs to `blocks.0.attn.qkv`. An operation whose module is unknown belongs to the layer
whose weights it reads; one without weights to the layer that contains the nearest operations before and after it that
have one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ..egraph.ir.graph import Graph
from ..egraph.ir.tensor import Tensor
from ..pipeline.context.session import Session
from ..pipeline.stages.prepare import prepare

WEIGHTS = ("param", "constant", "full")
MOST_NEAR = 8  # nearest layers of an operation in one direction, above which only what contains them all is kept


def layers_of(graph: Graph, modules: Mapping[Tensor, str] | None = None) -> dict[Tensor, str]:
    """Layer (dotted path) of each operation that belongs to one; inputs and operations on weights alone belong to none.

    `modules`: known module paths of operations (`modules_of`).
    """
    nodes, known = graph.nodes(), modules or {}
    held = weight_names(nodes)
    found = {
        n: layer for n in nodes
        if n not in held and not n.is_leaf and (layer := known.get(n) or common(map(_layer, _read(n, held))))
    }  # fmt: skip
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


def modules_of(session: Session, graph: Graph, sizes: Mapping[str, int] | None) -> dict[Tensor, str]:
    """Module path of each operation of the prepared (simplified, widened) form of a loaded graph; empty if the source
    has none.

    The operations whose module the importer recorded are prepared once more, as outputs of one graph; its results are
    then their prepared forms, in the same order.
    """
    if not graph.modules:
        return {}
    traced, n = list(graph.modules), len(graph.outputs)
    names = (*graph.names, *(f"traced {i}" for i in range(len(traced))))
    shown = replace(graph, outputs=(*graph.outputs, *traced), names=names)
    found: dict[Tensor, str] = {}
    for before, after in zip(traced, prepare(session, shown, sizes, begin=False).work.outputs[n:]):
        for t in (after, *(after.args if after.op == "cast" else ())):  # outputs keep 16 bits
            found.setdefault(t, graph.modules[before])
    return found


def weight_names(nodes: Sequence[Tensor]) -> dict[Tensor, tuple[str, ...]]:
    """Nodes (operands first) that depend on weights and constants alone, with the names of these weights."""
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
    """For each node the layers of the nearest operations that have one, followed along `next_to` (operands or users).
    `nodes`: in an order in which those of `next_to` come first.
    """
    near: dict[Tensor, tuple[str, ...]] = {}
    for n in nodes:
        reached = dict.fromkeys(x for m in next_to[n] for x in ((found[m],) if m in found else near[m]))
        near[n] = tuple(reached) if len(reached) <= MOST_NEAR else (common(reached),)
    return near


__all__ = ["layers_of", "modules_of", "weight_names"]
