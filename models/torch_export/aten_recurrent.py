"""Functions that build the graph of ATen recurrent layers and cells, and shape functions for the layers during
`torch.export`.

Without the shape functions torch.export traces a layer's time steps one by one, which takes seconds for some hundred
steps. A cell is one time step, built from plain operations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ...egraph.builders import builders as t
from ...egraph.composites.composite_ops import relu, sigmoid
from ...egraph.composites.recurrent import layers
from ...egraph.ir.tensor import Tensor
from ...egraph.ops.law_text import GATES
from ...egraph.types.dims import DimExpr
from ...errors import UnsupportedError
from ...processes.forks import Lock
from .aten_reduce import linear
from .aten_views import chunk

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
        if isinstance(hidden, DimExpr) or isinstance(width, DimExpr):
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


# ---------------------------------------------------------------- cells: one time step
def _matrices(build: Callable[..., Any]) -> Callable[..., Any]:
    """Return the builder, refusing x and states that are not matrices (UnsupportedError): torch splits their axis 1."""

    def checked(x: Tensor, state: Any, *rest: Any, **named: Any) -> Any:
        if any(v.rank != 2 for v in (x, *([state] if isinstance(state, Tensor) else state))):
            raise UnsupportedError("a recurrent cell whose operands are not x[B, I] and states [B, H]")
        return build(x, state, *rest, **named)

    return checked


def _plain_cell(activation: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
    @_matrices
    def build(x: Tensor, h: Tensor, w_x: Tensor, w_h: Tensor, b_x: Any = None, b_h: Any = None) -> Tensor:
        """Return the next state [B, H] of x[B, I] and h[B, H]; w_x[H, I], w_h[H, H]."""
        return activation(linear(x, w_x, b_x) + linear(h, w_h, b_h))

    return build


@_matrices
def _gru_cell(x: Tensor, h: Tensor, w_x: Tensor, w_h: Tensor, b_x: Any = None, b_h: Any = None) -> Tensor:
    """Return the next state [B, H] of x[B, I] and h[B, H]; w_x[3H, I], w_h[3H, H]; gates: reset, update, new."""
    given, inner = (chunk(linear(v, w, b), 3, -1) for v, w, b in ((x, w_x, b_x), (h, w_h, b_h)))
    reset, update = (sigmoid(given[i] + inner[i]) for i in (0, 1))
    new = t.tanh(given[2] + inner[2] * reset)
    return (h - new) * update + new


@_matrices
def _lstm_cell(
    x: Tensor, states: Sequence[Tensor], w_x: Tensor, w_h: Tensor, b_x: Any = None, b_h: Any = None
) -> list[Tensor]:
    """Return the next [h, c], each [B, H]; w_x[4H, I], w_h[4H, H]; gates: input, forget, new, output."""
    h, c = states
    entry, forget, new, out = chunk(linear(x, w_x, b_x) + linear(h, w_h, b_h), 4, -1)
    c = sigmoid(forget) * c + sigmoid(entry) * t.tanh(new)
    return [sigmoid(out) * t.tanh(c), c]


CELLS: dict[str, Callable[..., Any]] = {
    "gru_cell.default": _gru_cell, "lstm_cell.default": _lstm_cell, "rnn_tanh_cell.default": _plain_cell(t.tanh),
    "rnn_relu_cell.default": _plain_cell(relu),
}  # fmt: skip
RECURRENT: dict[str, Callable[..., Any]] = {name: _builder(*kind) for name, kind in KINDS.items()} | CELLS


# ---------------------------------------------------------------- shapes, for torch.export
def _shapes(own: Callable[..., Any], shaped: Callable[..., Any]) -> Callable[..., Any]:
    """Return a kernel of an operator: `shaped`, which gives uninitialized results of the right shapes, for fake
    tensors; `own` for other tensors."""

    def run(x: Any, *rest: Any, **named: Any) -> Any:
        fake = type(x).__name__ in ("FakeTensor", "FunctionalTensor") or x.is_meta
        return (shaped if fake else own)(x, *rest, **named)

    return run


def layer_shapes(x: Any, first: Any, params: Any, biases: bool, count: int, dropout: float, train: bool,
                  bidirectional: bool, batch_first: bool) -> Any:  # fmt: skip
    """Uninitialized results of a recurrent layer, for tracing with fake tensors: hidden values of every step, then the
    last states."""
    states = list(first) if isinstance(first, list | tuple) else [first]
    width = params[1].shape[1] * (1 + bool(bidirectional))
    return (x.new_empty((*x.shape[:2], width)), *(s.new_empty(s.shape) for s in states))


def _cell_shapes(x: Any, state: Any, w_x: Any, w_h: Any, *_: Any, **__: Any) -> Any:
    """Uninitialized next states of a cell, for tracing with fake tensors. Raises RuntimeError, as torch does, for
    operands that do not fit."""
    import torch

    several = isinstance(state, list | tuple)
    states = list(state) if several else [state]
    for s in states:
        torch._check(x.dim() == s.dim() == 2, lambda: "a recurrent cell takes x[B, I] and states [B, H]")
        torch._check(x.dtype == s.dtype == w_x.dtype, lambda: "x, states and weights of a cell differ in dtype")
        for size, wanted in ((x.shape[1], w_x.shape[1]), (s.shape[1], w_h.shape[1]), (s.shape[0], x.shape[0])):
            torch._check(size == wanted, lambda: "x, states and weights of a cell differ in a size")
    empty = tuple(s.new_empty(s.shape) for s in states)
    return empty if several else empty[0]


_LOCK = Lock()
_users = 0
_before: dict[Any, tuple[dict[Any, Any], dict[Any, Any]]] = {}


@contextmanager
def known_shapes() -> Iterator[None]:
    """Context manager that installs the shape functions of recurrent layers in torch's dispatcher.

    Reference-counted across threads.
    """
    import torch

    global _users
    keys = [torch._C.DispatchKey.Autograd, torch._C.DispatchKey.CompositeImplicitAutograd, torch._C.DispatchKey.Meta]
    with _LOCK:
        _users += 1
        if _users == 1:
            for name, shaped in (dict.fromkeys(KINDS, layer_shapes) | dict.fromkeys(CELLS, _cell_shapes)).items():
                packet, _, overload = name.partition(".")
                op = getattr(getattr(torch.ops.aten, packet), overload)
                _before[op] = dict(op.py_kernels), dict(op._dispatch_cache)
                kernel = _shapes(op.py_kernels.get(keys[1]) or op, shaped)
                op._dispatch_cache.clear()
                op.py_kernels.update(dict.fromkeys(keys, kernel))
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


__all__ = ["KINDS", "RECURRENT", "known_shapes", "layer_shapes"]
