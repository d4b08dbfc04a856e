"""Programs without a search, for fuzzers of what surrounds programs: the graph itself, evaluated with NumPy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from tensor_graphs.backends.runtime.cpu_tensors import array_of
from tensor_graphs.egraph.evaluate.interpret import evaluate
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.pipeline.sources.source import bound


class Evaluated:
    """What `torch_compile` needs of a program, in place of one that `optimize` found for fixed sizes."""

    def __init__(self, graph: Graph, dims: Mapping[str, int] | None = None, **options: Any) -> None:
        self.graph, _ = bound(graph, dict(dims or {}))
        self.params = {k: np.array(v.load() if hasattr(v, "load") else v) for k, v in self.graph.params.items()}
        self.report = SimpleNamespace(remembered=False)
        self.manifest = SimpleNamespace(sizes={}, buckets=None, kernels=len(self.graph.outputs))

    def bind(self) -> Evaluated:
        """Itself: weights were copied when it was made."""
        return self

    def steady(self, places: Sequence[int]) -> None:
        """Nothing: no addresses are kept."""

    def flat(self, *given: Any) -> list[Any]:
        """The graph's outputs as arrays of their own."""
        names = [str(x.attr("name")) for x in self.graph.inputs]
        values = {n: np.array(array_of(x)) for n, x in zip(names, given, strict=True)}
        with np.errstate(all="ignore"):
            found = evaluate(self.graph, values, params=self.params)
        return [np.array(y) for y in found]


__all__ = ["Evaluated"]
