"""Lets Dynamo take PyTorch's recurrent layers into the graphs that this package's backend compiles.

By default Dynamo runs code that contains `nn.RNN`, `nn.GRU` or `nn.LSTM` without compiling it, for good
(`torch._dynamo.config.allow_rnn`). For compilers marked by `captures_layers` it traces a layer where no gradients,
autocast and dropout are needed (recurrent_operators.py); elsewhere it calls the layer between two graphs. A traced
layer's results get their shapes from a shape function, so that tracing takes the same time for any number of steps and
leaves batch and steps free.
"""

from __future__ import annotations

import functools
import sys
from typing import Any, TypeVar

from .recurrent_operators import operator_of

_MARK = "captures_recurrent_layers"
Compiler = TypeVar("Compiler")


def captures_layers(compiler: Compiler) -> Compiler:
    """Mark a compiler function of Dynamo, or a class of them, and install the rule for recurrent layers
    (`install_rule`). Returns `compiler`."""
    setattr(compiler, _MARK, True)
    install_rule()
    return compiler


def install_rule() -> None:
    """Install the rule for recurrent layers in Dynamo if PyTorch is imported; models are made with it."""
    if "torch" in sys.modules:
        _install()


def _is_marked(compiler: Any) -> bool:
    """Whether Dynamo's compiler function is one of `captures_layers`, in whatever PyTorch wraps it."""
    while compiler is not None:
        if getattr(compiler, _MARK, False):
            return True
        compiler = getattr(compiler, "_torchdynamo_orig_backend", None) or getattr(compiler, "compiler_fn", None)
    return False


def _is_layer(module: Any) -> bool:
    """Whether a module is one of PyTorch's recurrent layers."""
    import torch

    return isinstance(module, torch.nn.RNN | torch.nn.GRU | torch.nn.LSTM)


def _usual_mode() -> bool:
    """Whether Dynamo traces where no gradients, no autocast and no transforms of `torch.func` (`jvp`) are active."""
    import torch

    transformed = torch._C._functorch.peek_interpreter_stack() is not None
    return not (torch.is_grad_enabled() or torch._C._is_any_autocast_enabled() or transformed)


def _traceable(layer: Any) -> bool:
    """Whether a recurrent layer can be captured in the present mode."""
    return _usual_mode() and not (layer.training and layer.dropout)


@functools.cache
def _install() -> None:
    """Wrap `VariableBuilder.wrap_module`, where Dynamo decides about a module. Does nothing in a PyTorch that has no
    such method, `run_node` or `allow_rnn`. Other compilers are not affected."""
    import torch._dynamo

    try:
        from torch._dynamo.source import AttrSource
        from torch._dynamo.variables.builder import VariableBuilder
        from torch._dynamo.variables.misc import DelayGraphBreakVariable

        own, _ = VariableBuilder.wrap_module, torch._dynamo.utils.run_node
    except (ImportError, AttributeError):
        return
    if not hasattr(torch._dynamo.config, "allow_rnn"):
        return
    own_files = {torch.nn.modules.rnn.__file__, torch.nn.modules.module.__file__}

    class Layer(DelayGraphBreakVariable):  # type: ignore[misc]
        """A layer whose call breaks the graph. Its numbers and strings (`hidden_size`) are those of the module."""

        def __init__(self, value: Any, **named: Any) -> None:
            super().__init__(msg="a recurrent layer with gradients, autocast or dropout", **named)
            self.value = value

        def var_getattr(self, tx: Any, name: str) -> Any:
            found = self.value.__dict__.get(name)
            if isinstance(found, int | float | str):  # bool is an int
                return VariableBuilder(tx, AttrSource(self.source, name))(found)
            return super().var_getattr(tx, name)

    @functools.wraps(own)
    def wrap_module(self: Any, value: Any) -> Any:
        if not _is_layer(value) or not _is_marked(self.tx.output.compiler_fn):
            return own(self, value)
        if not _traceable(value):
            if self.tx.f_code.co_filename in own_files:  # its own code, which then runs as it is
                return own(self, value)
            if value.dropout:  # a guard: in the other mode the layer may be captured
                VariableBuilder(self.tx, AttrSource(self.source, "training"))(value.training)
            return Layer(value, source=self.source)
        with torch._dynamo.config.patch(allow_rnn=True):
            return own(self, value)

    VariableBuilder.wrap_module = wrap_module
    _install_shapes()


def _install_shapes() -> None:
    """Wrap `torch._dynamo.utils.run_node`, which computes the fake results of a node: ATen's layers unroll their steps
    there. Other compilers, and gradients, autocast and dropout, are not affected."""
    import torch._dynamo

    own = torch._dynamo.utils.run_node

    @functools.wraps(own)
    def run_node(tracer: Any, node: Any, args: Any, kwargs: Any, nnmodule: Any) -> Any:
        operator = operator_of(node) if _is_marked(getattr(tracer, "compiler_fn", None)) and _usual_mode() else None
        return own(tracer, node, args, kwargs, nnmodule) if operator is None else operator(*args)

    torch._dynamo.utils.run_node = run_node


__all__ = ["captures_layers", "install_rule"]
