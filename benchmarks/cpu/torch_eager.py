"""A graph run by eager PyTorch: node by node with plain torch calls, as a model's author would have written them.

Not our Torch backend: no prepared weights, no `out=`, no choice of kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.ir.tensor import Tensor
from tensor_graphs.egraph.ir.weight_data import load_data
from tensor_graphs.egraph.types.dims import concrete

_Call = Callable[..., Any]


def _calls() -> dict[str, _Call]:
    """op -> function of the node and its operands' values."""
    import torch
    import torch.nn.functional as F

    def concat(n: Tensor, a: Any, b: Any) -> Any:
        return torch.cat((a, b), n.attr("axis"))

    def slices(n: Tensor, x: Any) -> Any:
        place: list[Any] = [slice(None)] * n.rank
        place[n.attr("axis")] = slice(n.attr("start"), n.attr("stop"), n.attr("step"))
        return x[tuple(place)]

    def conv(n: Tensor, x: Any, w: Any) -> Any:
        return _padded(
            n, x, lambda y, p: F.conv2d(y, w, None, n.attr("strides"), p, n.attr("dilations"), n.attr("groups"))
        )

    return {
        "relu": lambda n, x: torch.relu(x), "sigmoid": lambda n, x: torch.sigmoid(x), "tanh": lambda n, x: torch.tanh(x),
        "add": lambda n, a, b: a + b, "sub": lambda n, a, b: a - b, "mul": lambda n, a, b: a * b,
        "div": lambda n, a, b: a / b, "matmul": lambda n, a, b: a @ b, "concat": concat, "slice": slices, "conv": conv,
        "linear": lambda n, x, w, b: x @ w + b,
        "reshape": lambda n, x: x.reshape(concrete(n.shape)), "permute": lambda n, x: x.permute(n.attr("perm")),
        "broadcast_to": lambda n, x: x.expand(concrete(n.shape)),
        "mean": lambda n, x: x.mean(n.attr("axes"), keepdim=True), "sum": lambda n, x: x.sum(n.attr("axes"), keepdim=True),
        "max_pool": lambda n, x: _padded(
            n, x, lambda y, p: F.max_pool2d(y, n.attr("kernel"), n.attr("strides"), p, n.attr("dilations")), float("-inf")),
        "avg_pool": lambda n, x: _padded(n, x, lambda y, p: F.avg_pool2d(y, n.attr("kernel"), n.attr("strides"), p)),
    }  # fmt: skip


def _padded(node: Tensor, x: Any, call: Callable[[Any, tuple[int, int]], Any], fill: float = 0.0) -> Any:
    """A windowed op: called with its pads if both sides are equal, else on an input that is padded beforehand with
    `fill`.
    """
    import torch.nn.functional as F

    top, left, bottom, right = node.attr("pads")
    if (top, left) == (bottom, right):
        return call(x, (top, left))
    return call(F.pad(x, (left, right, top, bottom), value=fill), (0, 0))


def eager(graph: Graph, dtype: Any = None) -> Callable[..., list[Any]]:
    """A function of the graph's inputs, in order, as torch tensors; returns the outputs.

    `dtype`: dtype of the weights (default: their own). Raises KeyError with the name of an op that is not known here.
    """
    import torch

    calls, values, steps, place = _calls(), [], [], {}

    for node in graph.nodes():
        place[node] = len(values)
        values.append(None)
        if node.op == "param":
            array = torch.from_numpy(load_data(graph.params[node.attr("name")]).copy())
            values[-1] = array.to(dtype) if dtype else array
        elif node.op != "input":
            steps.append((place[node], calls[node.op], node, [place[a] for a in node.args]))
    inputs, outputs = [place[i] for i in graph.inputs], [place[o] for o in graph.outputs]

    def run(*given: Any) -> list[Any]:
        live = list(values)
        for i, x in zip(inputs, given, strict=True):
            live[i] = x
        with torch.no_grad():
            for target, call, node, args in steps:
                live[target] = call(node, *[live[a] for a in args])
        return [live[o] for o in outputs]

    return run


def random_inputs(graph: Graph, seed: int = 0) -> Sequence[Any]:
    """NumPy values for a graph's inputs."""
    import numpy as np

    from tensor_graphs.backends.verification.index_bounds import index_bounds
    from tensor_graphs.verification.reference import sample_inputs

    found = sample_inputs(graph.inputs, np.random.default_rng(seed), index_bounds(graph))
    return [found[str(i.attr("name"))] for i in graph.inputs]
