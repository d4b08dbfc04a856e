"""Arguments that a traced graph writes (running statistics, counters, caches) get their new values in one copy.

AOTAutograd keeps the writes of arguments without gradients in the graph, as copies at its end. Programs have no such
operators: the new values become results, the first ones, which `WrittenArguments` copies into the arguments, all of a
dtype in one launch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


def take_writes(module: Any) -> list[int]:
    """Remove the copies into arguments from a traced graph module, and make the new values its first results; returns
    the positions of the arguments, in the order of these results."""
    import torch

    graph, positions, values = module.graph, list[int](), list[Any]()
    places = {n: i for i, n in enumerate(graph.find_nodes(op="placeholder"))}
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default):
        if node.args[0] in places and not node.users and not node.kwargs and len(node.args) == 2:
            positions.append(places[node.args[0]])
            values.append(node.args[1])
            graph.erase_node(node)
    if positions:
        output = graph.output_node()
        output.args = ((*values, *output.args[0]),)
        module.recompile()
    return positions


class WrittenArguments:
    """Callable with the arguments of `traced`, a graph whose first results are new values of the arguments at
    `positions`: copies these into the arguments and returns the other results."""

    def __init__(self, traced: Callable[..., Any], positions: Sequence[int]) -> None:
        self.traced, self.positions = traced, list(positions)

    def __call__(self, *args: Any) -> Any:
        """The graph's results without the new values."""
        import torch

        found, count = self.traced(*args), len(self.positions)
        groups: dict[Any, tuple[list[Any], list[Any]]] = {}
        for i, new in zip(self.positions, found):
            given, values = groups.setdefault(args[i].dtype, ([], []))
            given.append(args[i])
            values.append(new)
        with torch.no_grad():
            for given, values in groups.values():
                torch._foreach_copy_(given, values)
        return found[count:]


__all__ = ["WrittenArguments", "take_writes"]
