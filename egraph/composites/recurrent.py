"""Builds recurrent layers as tensor expressions: packs the operands of the op `recurrent`, and unrolls it into simpler
ops.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..builders import builders as t
from ..ir.tensor import Tensor, make
from ..ops.recurrence import scan
from ..types.dims import Dim, DimExpr
from .composite import expand
from .composite_ops import relu, sigmoid, softplus

#: Maximum number of cells (steps x layers x directions) for which the unrolled form is added to the e-graph.
UNROLLED = 32
ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "sigmoid": sigmoid, "tanh": t.tanh, "relu": relu, "softplus": softplus, "softsign": lambda v: v / (t.abs(v) + 1.0),
}  # fmt: skip


def unrolled(x: Tensor, state: Tensor, w: Tensor, **attrs: Any) -> Tensor | None:
    """The `recurrent` node unrolled into simpler ops.

    None if it has more than UNROLLED cells or a symbolic number of steps.
    """
    steps = x.shape[0]
    if isinstance(steps, DimExpr) or steps * attrs["layers"] * attrs["directions"] > UNROLLED:
        return None
    found: Tensor = scan(x, state, w, ACTIVATIONS, t.concat, **attrs)
    return found


def parts_of(node: Tensor) -> Tensor | None:
    """Equal term of simpler ops: the decomposition of a composite, or the unrolled form of a `recurrent` node.

    None for other nodes.
    """
    if node.op == "recurrent":
        return unrolled(*node.args, **dict(node.attrs))
    return expand(node) if node.entry.composite else None


def concat_flat(values: Sequence[Tensor]) -> Tensor:
    """Vector of the elements of several tensors, concatenated in order.

    Concatenates as a balanced tree, so each element is copied O(log n) times.
    """
    if len(values) == 1:
        return t.reshape(values[0], (-1,))
    middle = len(values) // 2
    return t.concat([concat_flat(values[:middle]), concat_flat(values[middle:])], 0)


def layers(
    x: Tensor, states: Sequence[Tensor], weights: Sequence[Tensor], *, cell: str, activations: str, hidden: int, width: int,
    count: int, directions: int, variant: str = "",
) -> tuple[Tensor, list[Tensor]]:  # fmt: skip
    """Output and last states of recurrent layers over x[T, B, I], as expressions.

    The output holds the last layer's hidden values, [T, B, directions * width]. The last states are those of each layer
    and direction, [count * directions, B, width]; an LSTM adds its cell states, [count * directions, B, hidden].

    `states` are the initial states, with the shapes of the last states. `weights` lists per layer and direction:
    w_x[gates * hidden, I], w_h[gates * hidden, width], b_x[gates * hidden], b_h[gates * hidden], then a projection
    [width, hidden] if width != hidden, then [3, hidden] (input, forget and output gate) if `variant` contains
    "peephole". `variant` may also contain "coupled" (LSTM forget gate = 1 - input gate) or "reset first" (GRU resets
    the state before its product).
    """
    attrs = {"cell": cell, "variant": variant, "activations": activations, "hidden": hidden, "width": width, "layers": count,
             "directions": directions}  # fmt: skip
    state, w = concat_flat(states), concat_flat(weights)
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


__all__ = ["ACTIVATIONS", "UNROLLED", "concat_flat", "layers", "parts_of", "unrolled"]
