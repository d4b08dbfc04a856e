"""Makes the form of a Dynamo graph that runs eagerly: one in which checkpoints draw the same random numbers again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .recurrent_operators import layer_calls


def eager_form(module: Any) -> Any:
    """Graph module with the results and gradients of the code that Dynamo captured, for calls that are not traced.

    `module` itself unless it has checkpoints (`torch.utils.checkpoint`) or recurrent layers. Dynamo's operator for
    checkpoints turns the option `preserve_rng_state` off, because compilers see to it, so that dropout in a checkpoint
    had another mask in the backward pass. The calls of recurrent layers are replaced when `module` is traced
    (`recurrent_operators`).
    """
    import torch

    operator = torch.ops.higher_order.tag_activation_checkpoint
    parts = {name: eager_form(part) for name, part in module.named_children() if isinstance(part, torch.fx.GraphModule)}
    changed = any(part is not getattr(module, name) for name, part in parts.items()) or any(layer_calls(module.graph))
    if not changed and not module.graph.find_nodes(op="call_function", target=operator):
        return module
    graph = torch.fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    for node in graph.find_nodes(op="call_function", target=operator):
        node.target = _checkpoint
    made = torch.fx.GraphModule(module, graph)
    for name, part in parts.items():
        setattr(made, name, part)
    return made


def _checkpoint(body: Any, *args: Any, **named: Any) -> Any:
    """Call a graph module in a checkpoint, with the options and the policy of the caller's own checkpoint."""
    from torch.utils.checkpoint import checkpoint

    policy = body.meta.get("_checkpoint_context_fn")
    chosen = {} if policy is None else {"context_fn": policy}
    return checkpoint(body, *args, **{**named, **chosen, "use_reentrant": False})


def inference_form(module: Any, example_inputs: Sequence[Any]) -> Any:
    """`module`, the eager form of a Dynamo graph, or where it has gradients of `torch.func` and none are recorded, a
    module that runs it as AOTAutograd traces it in inference mode: there Dynamo's form of `jacrev` raises an internal
    error of PyTorch. To be called while Dynamo compiles the graph, with its `example_inputs`.
    """
    import torch
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.aot_autograd import make_boxed_func

    inner = any(getattr(n.target, "__name__", "") == "_autograd_grad" for n in module.graph.nodes)
    if torch.is_grad_enabled() or not inner:
        return module
    traced = aot_autograd(fw_compiler=lambda graph, _: make_boxed_func(graph))(module, example_inputs)

    class Form(torch.nn.Module):  # type: ignore[misc]
        """The two forms of a graph."""

        def __init__(self) -> None:
            super().__init__()
            self.dynamo = module

        def forward(self, *args: Any) -> Any:
            return (traced if torch.is_inference_mode_enabled() else self.dynamo)(*args)

    return Form()


__all__ = ["eager_form", "inference_form"]
