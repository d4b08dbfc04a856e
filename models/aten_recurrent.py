"""Builders of ATen recurrent layers, and shape functions for these layers during `torch.export`.

Without the shape functions torch.export traces a layer's time steps one by one, which takes seconds for some hundred
steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any

from ..egraph import api as t
from ..egraph.dims import Expr
from ..egraph.graph import Tensor
from ..egraph.laws import GATES
from ..egraph.recurrent import layers
from ..errors import UnsupportedError

Builder = Callable[..., list[Tensor]]
#: Overloads over a batch of whole sequences: name -> (cell, activations).
KINDS = {
    "lstm.input": ("lstm", "sigmoid tanh tanh"), "gru.input": ("gru", "sigmoid tanh"), "rnn_tanh.input": ("plain", "tanh"),
    "rnn_relu.input": ("plain", "relu"),
}  # fmt: skip


def _builder(cell: str, activations: str) -> Builder:
    def build(
        x: Tensor, first: Any, params: Sequence[Tensor], biases: bool, count: int, dropout: float, train: bool,
        bidirectional: bool, batch_first: bool,
    ) -> list[Tensor]:  # fmt: skip
        """Return [hidden values of every step, last states…] of x[T, B, I] (x[B, T, I] with `batch_first`)."""
        if train and dropout and count > 1:
            raise UnsupportedError(
                "dropout between recurrent layers: is the module in training mode? call .eval() first"
            )
        states = [first] if isinstance(first, Tensor) else list(first)
        x = t.swapaxes(x, 0, 1) if batch_first else x
        directions = 1 + bool(bidirectional)
        each = len(params) // (count * directions)
        rows, width = params[1].shape
        hidden = rows // GATES[cell][0]
        if isinstance(hidden, Expr) or isinstance(width, Expr):
            raise UnsupportedError("a recurrent layer of free size")
        weights: list[Tensor] = []
        for i in range(0, len(params), each):
            own = list(params[i : i + each])
            none = t.zeros((rows,), own[0].dtype)
            weights += own if biases else [*own[:2], none, none, *own[2:]]
        out, last = layers(
            x, states, weights, cell=cell, activations=activations, hidden=hidden, width=width, count=count,
            directions=directions,
        )  # fmt: skip
        return [t.swapaxes(out, 0, 1) if batch_first else out, *last]

    return build


RECURRENT: dict[str, Builder] = {name: _builder(*kind) for name, kind in KINDS.items()}


# ---------------------------------------------------------------- shapes, for torch.export
def _shapes(own: Callable[..., Any]) -> Callable[..., Any]:
    """Return a kernel: empty results of the right shapes for fake tensors, `own` for other tensors."""

    def run(
        x: Any, first: Any, params: Any, biases: bool, count: int, dropout: float, train: bool, bidirectional: bool,
        batch_first: bool,
    ) -> Any:  # fmt: skip
        if type(x).__name__ not in ("FakeTensor", "FunctionalTensor") and not x.is_meta:
            return own(x, first, params, biases, count, dropout, train, bidirectional, batch_first)
        states = list(first) if isinstance(first, list | tuple) else [first]
        width = params[1].shape[1] * (1 + bool(bidirectional))
        return (x.new_empty((*x.shape[:2], width)), *(s.new_empty(s.shape) for s in states))

    return run


_LOCK = Lock()
_users = 0
_before: dict[Any, tuple[dict[Any, Any], dict[Any, Any]]] = {}


@contextmanager
def known_shapes() -> Iterator[None]:
    """Context that installs the shape functions of recurrent layers in torch's dispatcher.

    Reference-counted across threads.
    """
    import torch

    global _users
    keys = [torch._C.DispatchKey.Autograd, torch._C.DispatchKey.CompositeImplicitAutograd, torch._C.DispatchKey.Meta]
    with _LOCK:
        _users += 1
        if _users == 1:
            for name in KINDS:
                packet, _, overload = name.partition(".")
                op = getattr(getattr(torch.ops.aten, packet), overload)
                _before[op] = dict(op.py_kernels), dict(op._dispatch_cache)
                shaped = _shapes(op.py_kernels.get(keys[1]) or op)
                op._dispatch_cache.clear()
                op.py_kernels.update(dict.fromkeys(keys, shaped))
    try:
        yield
    finally:
        with _LOCK:
            _users -= 1
            if not _users:
                for op, (kernels, _) in _before.items():
                    op.py_kernels.clear()
                    op.py_kernels.update(kernels)
                    op._dispatch_cache.clear()
                _before.clear()


__all__ = ["KINDS", "RECURRENT", "known_shapes"]
