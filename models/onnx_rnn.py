"""ONNX recurrent layers, unrolled over a known number of steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..egraph import api as t
from ..egraph import composite as c
from ..egraph.dims import Dim, Expr
from ..egraph.graph import Tensor
from ..errors import ShapeError
from .onnx_node import Node, Result, operator

#: Longer sequences would make graphs that are too large to be rewritten.
MAX_STEPS = 512

Activation = Callable[[Tensor], Tensor]
_ACTIVATIONS: dict[str, Activation] = {
    "sigmoid": c.sigmoid, "tanh": t.tanh, "relu": c.relu, "softplus": c.softplus,
    "softsign": lambda x: x / (t.abs(x) + 1.0),
}  # fmt: skip


@dataclass(frozen=True)
class _Cell:
    """Weights of one direction: w[I, G*H], r[H, G*H], biases [1, G*H] of both, peepholes [1, 3*H], activations."""

    w: Tensor
    r: Tensor
    wb: Tensor
    rb: Tensor
    peep: Tensor | None
    acts: tuple[Activation, ...]
    hidden: int

    def gate(self, x: Tensor, i: int) -> Tensor:
        """The i-th block of H columns."""
        return t.slice_axis(x, -1, i * self.hidden, (i + 1) * self.hidden)

    def peeped(self, x: Tensor, i: int, memory: Tensor) -> Tensor:
        """The i-th block plus the i-th peephole's share of the memory."""
        block = self.gate(x, i)
        return block if self.peep is None else t.add(block, t.mul(self.gate(self.peep, i), memory))


def _direction(x: Tensor, direction: int) -> Tensor:
    """The weights of one direction, without the leading axis."""
    return t.squeeze(t.slice_axis(x, 0, direction, direction + 1), 0)


State = tuple[Tensor, ...]
Step = Callable[[Node, _Cell, Tensor, State], State]


def _rnn(n: Node, cell: _Cell, x: Tensor, state: State) -> State:
    return (cell.acts[0](t.add(x, t.add(t.matmul(state[0], cell.r), cell.rb))),)


def _gru(n: Node, cell: _Cell, x: Tensor, state: State) -> State:
    f, g = cell.acts
    h = state[0]
    inner = t.add(t.matmul(h, cell.r), cell.rb)
    z, r = (f(t.add(cell.gate(x, i), cell.gate(inner, i))) for i in (0, 1))
    if n.attr("linear_before_reset", 0):
        new = g(t.add(cell.gate(x, 2), t.mul(r, cell.gate(inner, 2))))
    else:
        reset = t.add(t.matmul(t.mul(r, h), cell.gate(cell.r, 2)), cell.gate(cell.rb, 2))
        new = g(t.add(cell.gate(x, 2), reset))
    return (t.add(t.mul(1.0 - z, new), t.mul(z, h)),)


def _lstm(n: Node, cell: _Cell, x: Tensor, state: State) -> State:
    f, g, last = cell.acts
    h, memory = state
    total = t.add(x, t.add(t.matmul(h, cell.r), cell.rb))
    entry = f(cell.peeped(total, 0, memory))
    forget = 1.0 - entry if n.attr("input_forget", 0) else f(cell.peeped(total, 2, memory))
    memory = t.add(t.mul(forget, memory), t.mul(entry, g(cell.gate(total, 3))))
    out = f(cell.peeped(total, 1, memory))
    return t.mul(out, last(memory)), memory


#: operator -> (step, gates, states, default activations)
_KINDS: dict[str, tuple[Step, int, int, tuple[str, ...]]] = {
    "RNN": (_rnn, 1, 1, ("Tanh",)),
    "GRU": (_gru, 3, 1, ("Sigmoid", "Tanh")),
    "LSTM": (_lstm, 4, 2, ("Sigmoid", "Tanh", "Tanh")),
}


def _cell(n: Node, direction: int, hidden: int) -> _Cell:
    _, gates, _, default = _KINDS[n.op]
    w, r = t.transpose(_direction(n.x(1), direction)), t.transpose(_direction(n.x(2), direction))
    width = gates * hidden
    bias = n.opt(3)
    both = t.zeros((1, 2 * width), w.dtype) if bias is None else t.reshape(_direction(bias, direction), (1, 2 * width))
    peep = n.opt(7) if n.op == "LSTM" else None
    names = n.attr("activations", [])
    names = [v.decode() if isinstance(v, bytes) else v for v in names] or list(default) * 2
    chosen = [v.lower() for v in names[direction * len(default) : (direction + 1) * len(default)]]
    if any(v not in _ACTIVATIONS for v in chosen) or len(chosen) != len(default):
        raise n.unsupported(f"activations {chosen}")
    line = None if peep is None else t.reshape(_direction(peep, direction), (1, 3 * hidden))
    acts = tuple(_ACTIVATIONS[v] for v in chosen)
    return _Cell(w, r, t.slice_axis(both, 1, 0, width), t.slice_axis(both, 1, width, 2 * width), line, acts, hidden)


def _run(n: Node, x: Tensor, direction: int, backward: bool, hidden: int) -> tuple[list[Tensor], State]:
    """Hidden values [B, H] of every step in the order of time, and the last state."""
    step, _, states, _ = _KINDS[n.op]
    cell = _cell(n, direction, hidden)
    batch: Dim = x.shape[1]
    projected = t.add(t.matmul(x, cell.w), t.with_rank(cell.wb, 3))
    state: State = tuple(_initial(n, 5 + i, direction, (batch, hidden), x.dtype) for i in range(states))
    order = list(range(int(x.shape[0])))  # type: ignore[arg-type]
    found: list[Tensor] = []
    for i in reversed(order) if backward else order:
        state = step(n, cell, t.squeeze(t.slice_axis(projected, 0, i, i + 1), 0), state)
        found.append(state[0])
    return (found[::-1] if backward else found), state


def _initial(n: Node, position: int, direction: int, shape: tuple[Dim, ...], dtype: str) -> Tensor:
    given = n.opt(position)
    if given is None:
        return t.zeros(shape, dtype)
    axis = 1 if n.attr("layout", 0) else 0
    return t.squeeze(t.slice_axis(given, axis, direction, direction + 1), axis)


@operator("RNN", "GRU", "LSTM", limits="free or long (over 512) sequences, lengths per sample, clip, rare activations")
def _recurrent(n: Node) -> Result:
    x, batch_first = n.x(), bool(n.attr("layout", 0))
    x = t.swapaxes(x, 0, 1) if batch_first else x
    steps = x.shape[0]
    if isinstance(steps, Expr) or steps > MAX_STEPS:
        raise n.unsupported(f"{steps} steps")
    lengths = n.known(4)
    if "clip" in n.attrs or (n.has(4) and (lengths is None or (lengths != steps).any())):
        raise n.unsupported("clip or lengths per sample")
    hidden = n.x(2).shape[2]
    if isinstance(hidden, Expr) or steps < 1:
        raise ShapeError("a recurrent layer needs at least one step and a known hidden size")
    kind = n.choice("direction", "forward", "reverse", "bidirectional")
    backwards = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[kind]
    runs = [_run(n, x, i, backward, hidden) for i, backward in enumerate(backwards)]
    side = 1 if batch_first else 0  # where the axis of directions goes in the last states
    lines = [t.stack(values, 1 if batch_first else 0) for values, _ in runs]
    outputs: list[Tensor] = [t.stack(lines, 2 if batch_first else 1)]
    outputs += [t.stack([state[i] for _, state in runs], side) for i in range(len(runs[0][1]))]
    return outputs
