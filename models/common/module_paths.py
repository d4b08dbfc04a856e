"""Module paths of traced operations: which submodule of a model computes each tensor."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ...egraph.ir.graph import Graph
from ...egraph.ir.tensor import Tensor

LONGEST = 200  # characters of a path


class ModulePaths:
    """Module paths ("layers.0.mlp") of the tensors that a loader makes, recorded node by node of its source; a tensor
    keeps its first path."""

    def __init__(self) -> None:
        self._found: dict[Tensor, str] = {}

    def add(self, results: Any, operands: Any, path: str) -> None:
        """Record `path` for the tensors between `operands` (excluded) and `results`, which one node of the source
        computes; "" for an unknown module."""
        given, todo = set(_tensors(operands)), list(_tensors(results))
        while todo:
            t = todo.pop()
            if t not in self._found and t not in given and not t.is_leaf:
                self._found[t] = path
                todo += t.args

    def of(self, graph: Graph) -> dict[Tensor, str]:
        """The recorded path of each operation of a graph that has one."""
        return {n: path for n in graph.nodes() if (path := self._found.get(n, ""))}


def _tensors(values: Any) -> Iterator[Tensor]:
    """The tensors in nested lists, tuples and mappings."""
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, Mapping):
        yield from _tensors(list(values.values()))
    elif isinstance(values, list | tuple):
        for v in values:
            yield from _tensors(v)


def path_of_stack(stack: Any) -> str:
    """The path of the innermost module in the metadata `nn_module_stack` of an FX node; "" if it has none."""
    entries = list(stack.values()) if isinstance(stack, Mapping) else []
    last = entries[-1][0] if entries and isinstance(entries[-1], tuple) and entries[-1] else ""
    return joined(re.findall(r"\w+", re.sub(r"^L\\['self'\\]", "", str(last)).replace("_modules", "")))


def path_of_onnx(name: str, metadata: Iterable[Any]) -> str:
    """The module path of an ONNX node: from the metadata of PyTorch's exporter, else from a node name with slashes."""
    for entry in metadata:
        if entry.key == "pkg.torch.onnx.name_scopes":
            scopes = re.findall(r"'([^']*)'", entry.value)
            return joined(scopes[-2].split(".")) if len(scopes) > 1 else ""
    return joined(name.strip("/").split("/")[:-1])


def joined(parts: Sequence[str]) -> str:
    """The parts of a path, joined by dots. A part that repeats the path so far replaces it: /layers/layers.0/ becomes
    layers.0."""
    path = ""
    for part in parts:
        path = part if part == path or part.startswith(f"{path}.") or not path else f"{path}.{part}"
    return path[:LONGEST]


__all__ = ["ModulePaths", "joined", "path_of_onnx", "path_of_stack"]
