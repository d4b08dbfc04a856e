"""Orders the compute nodes of a graph such that repeated blocks (repeated subgraphs) are intervals."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ..ir.graph import Graph
from ..ir.tensor import Tensor, topological

#: Two readers of one value, one depending on the other, that are at least this many nodes apart belong to different
#: repeats.
APART = 8
#: Depth assumed below inputs and states.
HEAD = 32


def weight_only(nodes: Iterable[Tensor]) -> set[Tensor]:
    """The nodes that depend on params, constants, fills and iotas alone. Operands must come before users."""
    found: set[Tensor] = set()
    for node in nodes:
        if node.op not in ("input", "state") and all(a in found for a in node.args):
            found.add(node)
    return found


def compute_nodes(graph: Graph) -> list[Tensor]:
    """Nodes that must be computed at each call: neither leaves nor weight-only."""
    nodes = graph.nodes()
    fixed = weight_only(nodes)
    return [n for n in nodes if n not in fixed and not n.is_leaf]


@dataclass
class NodeOrder:
    """The compute nodes of a graph in an order in which repeats are intervals, and which nodes read each value.

    `at`: index of each compute node in `order` (inputs and states have none). `readers`: for each value, the ascending
    indices of the compute nodes that read it. `fixed`: the weight-only nodes. `roots`: outputs and state updates.
    """

    order: list[Tensor]
    fixed: set[Tensor]
    roots: set[Tensor]
    at: dict[Tensor, int]
    readers: dict[Tensor, list[int]]
    everywhere: set[Tensor] = field(default_factory=set)  # values not counted in widths
    early: list[int] = field(default_factory=list)  # indices of values listed ahead of the repeats that read them

    @staticmethod
    def of(graph: Graph, max_nodes: int) -> NodeOrder:
        """The order for a graph; values that many repeats read are listed before the first repeat.

        `max_nodes`: size limit of a block (repeated subgraph). Values read over a longer distance are not counted in
        widths (numbers of values live across a position).
        """
        nodes = graph.nodes()
        fixed = weight_only(nodes)
        depth = _depths(nodes, fixed, ())
        first = NodeOrder._make(_deep_first(graph.roots, depth), fixed, graph.roots)
        shared = first._shared(max_nodes)
        early = _early(nodes, shared, first)
        early += _parts(first, early)
        depth = _depths(nodes, fixed, early)
        order = _deep_first([*early, *graph.roots], depth)
        listing = NodeOrder._make(_beside(order, max(graph.roots, key=depth.__getitem__)), fixed, graph.roots)
        far = (v for v, reads in listing.readers.items() if reads[-1] - listing.at.get(v, -1) > max_nodes)
        listing.everywhere = {*early, *far}
        listing.early = [listing.at[v] for v in early if v in listing.at]
        return listing

    @staticmethod
    def _make(nodes: list[Tensor], fixed: set[Tensor], roots: Sequence[Tensor]) -> NodeOrder:
        """The compute nodes of a topological order with their readers."""
        order = [n for n in nodes if n not in fixed and not n.is_leaf]
        readers: dict[Tensor, list[int]] = {}
        for i, node in enumerate(order):
            for a in node.args:
                if a not in fixed:
                    readers.setdefault(a, []).append(i)
        return NodeOrder(order, fixed, set(roots), {n: i for i, n in enumerate(order)}, readers)

    def _shared(self, max_nodes: int) -> list[Tensor]:
        """Values that several repeats read in the same way (same op, same operand position).

        The reads are far apart, and the later ones depend on the first one or are far from the definition of the value.
        """
        found = []
        for value, reads in self.readers.items():
            if reads[-1] - reads[0] < APART:
                continue
            alike: dict[tuple[str, int], list[int]] = {}
            for i in reads:
                slot = next(k for k, a in enumerate(self.order[i].args) if a is value)
                alike.setdefault((self.order[i].op, slot), []).append(i)
            distant = reads[-1] - self.at.get(value, -1) > max_nodes
            for group in alike.values():
                later = [i for i in group if i - group[0] >= APART]
                if later and (distant or any(self._depends(i, group[0]) for i in (later[0], later[-1]))):
                    found.append(value)
                    break
        return found

    def _depends(self, late: int, early: int) -> bool:
        """Whether the node at index `late` depends on the node at index `early`."""
        stack, seen = [late], {late}
        while stack:
            for a in self.order[stack.pop()].args:
                i = self.at.get(a, -1)
                if i == early:
                    return True
                if i > early and i not in seen:
                    seen.add(i)
                    stack.append(i)
        return False


def _early(nodes: list[Tensor], shared: list[Tensor], listing: NodeOrder) -> list[Tensor]:
    """Shared values in listing order: longest live range first, each after the shared values it depends on."""
    span = {v: listing.readers[v][-1] - listing.at.get(v, -1) for v in shared}
    ranked = sorted(shared, key=lambda v: (-span[v], listing.at.get(v, -1)))
    bit = {v: 1 << i for i, v in enumerate(ranked)}
    needs: dict[Tensor, int] = {}
    for node in nodes if bit else ():
        below = bit.get(node, 0)
        for a in node.args:
            below |= needs[a]
        needs[node] = below
    found: dict[Tensor, None] = {}
    for start in ranked:
        stack = [start]
        while stack:
            value = stack[-1]
            missing = next((v for v in _members(needs[value] & ~bit[value], ranked) if v not in found), None)
            if missing is None:
                found.setdefault(stack.pop(), None)
            else:
                stack.append(missing)
    return list(found)


def _parts(listing: NodeOrder, shared: list[Tensor]) -> list[Tensor]:
    """Slices of shared values at different offsets (one step's input, one layer's row), which would make repeats
    differ.
    """
    found: list[Tensor] = []
    for value in shared:
        slices = dict.fromkeys(listing.order[i] for i in listing.readers[value] if listing.order[i].op == "slice")
        found += slices if len(slices) > 1 else []
    return found


def _members(bits: int, ranked: list[Tensor]) -> Iterable[Tensor]:
    """The elements of `ranked` whose bits are set."""
    while bits:
        low = bits & -bits
        yield ranked[low.bit_length() - 1]
        bits ^= low


def _depths(nodes: list[Tensor], fixed: set[Tensor], early: Iterable[Tensor]) -> dict[Tensor, int]:
    """Longest path to a leaf per node.

    Values listed early and weight-only nodes count 0. Inputs count HEAD + 1, so that the residual stream is the deepest
    operand in the first repeat as in all others.
    """
    depth = dict.fromkeys(early, 0)
    for node in nodes:
        if node in fixed:
            depth[node] = 0
        elif node not in depth:
            depth[node] = 1 + max((depth[a] for a in node.args), default=HEAD)
    return depth


def _deep_first(roots: Sequence[Tensor], depth: dict[Tensor, int]) -> list[Tensor]:
    """Topological order, deepest operand first: nodes that only one repeat needs are listed just before this repeat."""
    order: list[Tensor] = []
    done: set[Tensor] = set()
    stack = [(r, False) for r in reversed(roots)]
    while stack:
        node, ready = stack.pop()
        if ready:
            order.append(node)
        elif node not in done:
            done.add(node)
            stack.append((node, True))
            deepest_first = sorted((a for a in node.args if a not in done), key=lambda a: -depth[a])
            stack += [(a, False) for a in reversed(deepest_first)]
    return order


def _beside(nodes: list[Tensor], main: Tensor) -> list[Tensor]:
    """The order with nodes that the main root does not need (state updates, early heads) moved directly after their
    last operand.
    """
    kept = set(topological([main]))
    place: dict[Tensor, int] = {}
    for i, node in enumerate(nodes):
        place[node] = i if node in kept or node.is_leaf else max((place[a] for a in node.args), default=i)
    return sorted(nodes, key=place.__getitem__)


__all__ = ["APART", "HEAD", "NodeOrder", "compute_nodes", "weight_only"]
