"""Keeps PyTorch's recurrent layers whole while Dynamo and AOTAutograd trace a graph.

Both decompose a layer: the steps of a GRU or RNN are unrolled, which takes seconds for some dozen steps, fixes the
number of steps and leaves no layer to find a kernel for. The operators of the library `tensor_graphs` do what ATen's do
and have no decomposition. Dynamo gets the shapes of a layer's results from them (`operator_of`), and
`keep_layers_whole` puts them in the place of the layers before AOTAutograd traces. They have no gradients, so only
layers that are called without gradients are replaced.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from ..models.torch_export.aten_recurrent import KINDS, layer_shapes

_OPTIONS = "bool has_biases, int num_layers, float dropout, bool train, bool bidirectional, bool batch_first"
_kept: list[Any] = []  # operators exist as long as their library


@functools.cache
def _operators() -> dict[Any, Any]:
    """Function of PyTorch for a batch of whole sequences -> operator of the same meaning that has no decomposition."""
    import torch

    library, found = torch.library.Library("tensor_graphs", "FRAGMENT"), {}
    for name in KINDS:
        packet, _, overload = name.partition(".")
        states, results = ("Tensor[] hx", 3) if packet == "lstm" else ("Tensor hx", 2)
        outputs = ", ".join(["Tensor"] * results)
        library.define(f"{name}(Tensor input, {states}, Tensor[] params, {_OPTIONS}) -> ({outputs})")
        library.impl(name, _eager(getattr(torch, packet)), "CompositeExplicitAutograd")
        torch.library.register_fake(f"tensor_graphs::{name}", _shapes, lib=library)
        found[getattr(torch, packet)] = getattr(getattr(torch.ops.tensor_graphs, packet), overload)
    _kept.append(library)
    return found


def _shapes(*args: Any) -> Any:
    """Uninitialized results of a layer, for tracing. Batch-first values are laid out as [T, B, ...] in memory."""
    x, batch_first = args[0], args[-1]
    out, *states = layer_shapes(x.transpose(0, 1) if batch_first else x, *args[1:])
    return out.transpose(0, 1) if batch_first else out, *states


def _eager(own: Any) -> Any:
    """Implementation of an operator by the function of PyTorch, with the strides that `_shapes` promises."""

    def run(*args: Any) -> Any:
        out, *states = own(*args)
        out = out.transpose(0, 1).contiguous().transpose(0, 1) if args[-1] else out.contiguous()
        return out, *(s.contiguous() for s in states)

    return run


def operator_of(node: Any) -> Any:
    """Operator without decomposition for a node of Dynamo's graph that is a recurrent layer over a batch of whole
    sequences, without dropout; None for other nodes. It has no gradients and knows no autocast."""
    if node.op != "call_function" or node.target not in _operators() or node.kwargs:
        return None
    if len(node.args) != 9 or not isinstance(node.args[3], bool):  # the form for packed sequences
        return None
    x = getattr(node.args[0], "meta", {}).get("example_value")
    batch = x is None or x.dim() == 3  # `torch.rnn_tanh` takes one sequence x[T, I], too
    return _operators()[node.target] if batch and not (node.args[5] and node.args[6]) else None


def layer_calls(graph: Any) -> Iterator[Any]:
    """Yields the nodes of Dynamo's graph that are recurrent layers with an operator (`operator_of`), called without
    gradients, autocast and transforms of `torch.func`."""
    import torch

    gradients, transforms = torch.is_grad_enabled(), torch._C._functorch
    unusual = (torch.amp._enter_autocast, transforms._jvp_increment_nesting, transforms._vmap_increment_nesting)
    if torch._C._is_any_autocast_enabled() or any(graph.find_nodes(op="call_function", target=f) for f in unusual):
        return
    for node in graph.nodes:
        if node.target is torch._C._set_grad_enabled:
            gradients = node.args[0]
        if not gradients and operator_of(node) is not None:
            yield node


def keep_layers_whole(module: Any) -> None:
    """Replace the recurrent layers of Dynamo's graph module (`layer_calls`) by operators that AOTAutograd does not
    decompose, in place."""
    found = list(layer_calls(module.graph))
    for node in found:
        node.target = operator_of(node)
    if found:
        module.recompile()


__all__ = ["keep_layers_whole", "layer_calls", "operator_of"]
