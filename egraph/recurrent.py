"""Recurrent layers over expressions: how the operands of the op `recurrent` are packed, and its steps written out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from . import api as t
from .composite import expand, relu, sigmoid, softplus
from .dims import Dim, Expr
from .graph import Tensor, make
from .recurrence import scan

#: Layers of at most so many cells (steps times layers times directions) are also searched with their steps written out.
UNROLLED = 32
ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "sigmoid": sigmoid, "tanh": t.tanh, "relu": relu, "softplus": softplus, "softsign": lambda v: v / (t.abs(v) + 1.0),
}  # fmt: skip


def unrolled(x: Tensor, state: Tensor, w: Tensor, **attrs: Any) -> Tensor | None:
    """The steps of a `recurrent` node in simpler ops; None where they are more than UNROLLED, or not known."""
    steps = x.shape[0]
    if isinstance(steps, Expr) or steps * attrs["layers"] * attrs["directions"] > UNROLLED:
        return None
    found: Tensor = scan(x, state, w, ACTIVATIONS, t.concat, **attrs)
    return found


def parts_of(node: Tensor) -> Tensor | None:
    """An equal term of simpler ops: a composite's decomposition, few recurrent steps written out; None for other nodes."""
    if node.op == "recurrent":
        return unrolled(*node.args, **dict(node.attrs))
    return expand(node) if node.entry.composite else None


def line(values: Sequence[Tensor]) -> Tensor:
    """All elements of some values, one value after the other; halves are joined first, so that none is copied often."""
    if len(values) == 1:
        return t.reshape(values[0], (-1,))
    middle = len(values) // 2
    return t.concat([line(values[:middle]), line(values[middle:])], 0)


def layers(
    x: Tensor, states: Sequence[Tensor], weights: Sequence[Tensor], *, cell: str, activations: str, hidden: int, width: int,
    count: int, directions: int, variant: str = "",
) -> tuple[Tensor, list[Tensor]]:  # fmt: skip
    """Recurrent layers over x[T, B, I]: the last layer's hidden values [T, B, directions * width], and the last state of each layer
    and direction, [count * directions, B, width] (and the memories [count * directions, B, hidden] of an LSTM).

    `states` are the first states, of these shapes. `weights` are those of the first layer's directions, then of the next layer's:
    w_x[gates * hidden, I], w_h[gates * hidden, width], b_x[gates * hidden], b_h[gates * hidden], then [width, hidden] where the
    width is not hidden (a projection), then [3, hidden] where `variant` has "peephole" (of input, forget and output gate).
    `variant` may also have "coupled" (an LSTM's forget gate is 1 - its input gate) or "reset first" (a GRU resets the state before its
    product).
    """
    attrs = {"cell": cell, "variant": variant, "activations": activations, "hidden": hidden, "width": width, "layers": count,
             "directions": directions}  # fmt: skip
    state, w = line(states), line(weights)
    packed = make("recurrent", (x, state, w), attrs)
    steps, batch = x.shape[:2]
    cut: Dim = steps * batch * directions * width
    out = t.reshape(t.slice_axis(packed, 0, 0, cut), (steps, batch, directions * width))
    last = []
    for s, size in zip(states, (width, hidden)):
        end: Dim = cut + count * directions * batch * size
        last.append(t.reshape(t.slice_axis(packed, 0, cut, end), s.shape))
        cut = end
    return out, last


__all__ = ["ACTIVATIONS", "UNROLLED", "layers", "line", "parts_of", "unrolled"]
