"""Functions that translate ONNX recurrent layers, each to one op over all time steps."""

from __future__ import annotations

from collections.abc import Sequence

from ...egraph.builders import builders as t
from ...egraph.composites.recurrent import ACTIVATIONS, layers
from ...egraph.ir.tensor import Tensor
from ...egraph.types.dims import Dim, DimExpr
from ...errors import ShapeError
from .index import places, reversed_within
from .node import Node, Result, operator

#: ONNX operator -> (cell of the recurrent op, ONNX gate index for each gate of the cell, number of states, default
#: activations of one direction).
_CELLS: dict[str, tuple[str, tuple[int, ...], int, tuple[str, ...]]] = {
    "RNN": ("plain", (0,), 1, ("tanh",)),
    "GRU": ("gru", (1, 0, 2), 1, ("sigmoid", "tanh")),
    "LSTM": ("lstm", (0, 2, 3, 1), 2, ("sigmoid", "tanh", "tanh")),
}
_PEEPHOLES = (0, 2, 1)  # ONNX peephole index for each peephole of the cell


def _blocks(x: Tensor, order: Sequence[int], hidden: int) -> Tensor:
    """Reorder gate blocks of `hidden` rows."""
    return t.concat([t.slice_axis(x, 0, i * hidden, (i + 1) * hidden) for i in order], 0)


def _activations(n: Node, directions: int) -> list[str]:
    """Return the activations of each direction as a space-separated string, as the recurrent op expects."""
    default = _CELLS[n.op][3]
    names = [v.decode() if isinstance(v, bytes) else v for v in n.attr("activations", [])]
    chosen = [v.lower() for v in names] or list(default) * directions
    if len(chosen) != len(default) * directions or not ACTIVATIONS.keys() >= set(chosen):
        raise n.unsupported(f"activations {chosen}")
    each = [chosen[i * len(default) : (i + 1) * len(default)] for i in range(directions)]
    return [" ".join(names) for names in each]


def _weights(n: Node, direction: int, hidden: int) -> list[Tensor]:
    """Return the weights of one direction in the order of `layers`."""
    _, order, _, _ = _CELLS[n.op]
    rows = len(order) * hidden

    def own(x: Tensor) -> Tensor:
        return t.squeeze(t.slice_axis(x, 0, direction, direction + 1), 0)

    bias, peep = n.opt(3), n.opt(7) if n.op == "LSTM" else None
    both = t.zeros((2 * rows,), n.x(1).dtype) if bias is None else own(bias)
    halves = [t.slice_axis(both, 0, start, start + rows) for start in (0, rows)]
    found = [_blocks(x, order, hidden) for x in (own(n.x(1)), own(n.x(2)), *halves)]
    return found if peep is None else [*found, _blocks(own(peep), _PEEPHOLES, hidden)]


def _variant(n: Node) -> str:
    coupled, before = n.op == "LSTM" and n.attr("input_forget", 0), n.attr("linear_before_reset", 0)
    peep = n.op == "LSTM" and n.has(7)
    variants = ("coupled" * bool(coupled), "peephole" * bool(peep), "reset first" * (n.op == "GRU" and not before))
    return " ".join(filter(None, variants))


def _check_shapes(n: Node, sizes: Sequence[Dim], gates: int, hidden: int, batch_first: bool) -> None:
    """Raise ShapeError for weights, biases, states or peepholes of other shapes than ONNX says. `sizes`: directions,
    batch, features."""
    directions, batch, features = sizes
    rows = gates * hidden
    if n.attr("hidden_size", hidden) != hidden:
        raise ShapeError(f"hidden_size is {n.attr('hidden_size')}, but the weights are {n.x(2).type}")
    state = (batch, directions, hidden) if batch_first else (directions, batch, hidden)
    shapes: dict[int, tuple[Dim, ...]] = {
        1: (directions, rows, features), 2: (directions, rows, hidden), 3: (directions, 2 * rows), 4: (batch,), 5: state, 6: state,
        7: (directions, 3 * hidden),
    }  # fmt: skip
    for position, shape in shapes.items():
        if n.has(position):
            n.shaped(position, shape)


@operator("RNN", "GRU", "LSTM", limits="clip, rare activations, the last cell state of an LSTM with lengths per sample")
def _recurrent(n: Node) -> Result:
    batch_first = bool(n.attr("layout", 0))
    x = t.swapaxes(n.x(), 0, 1) if batch_first else n.x()
    steps, batch, features = x.shape
    if "clip" in n.attrs:
        raise n.unsupported("clip")
    known = n.known(4)
    lengths = None if not n.has(4) or (known is not None and (known == steps).all()) else n.x(4)
    if lengths is not None and n.op == "LSTM" and n.wanted(2):
        raise n.unsupported("the last cell state with lengths per sample")
    hidden = n.x(2).shape[2]
    if isinstance(hidden, DimExpr):
        raise ShapeError("a recurrent layer needs a known hidden size")
    kind = n.choice("direction", "forward", "reverse", "bidirectional")
    directions = 2 if kind == "bidirectional" else 1
    cell, order, count, _ = _CELLS[n.op]
    _check_shapes(n, (directions, batch, features), len(order), hidden, batch_first)
    acts = _activations(n, directions)
    given = [n.opt(5 + i) for i in range(count)]
    turned = [s if s is None or not batch_first else t.swapaxes(s, 0, 1) for s in given]
    states = [t.zeros((directions, batch, hidden), x.dtype) if s is None else s for s in turned]

    def run(x: Tensor, first: int, run_count: int) -> tuple[Tensor, list[Tensor]]:
        """Run `run_count` directions (forward, backward), the first of them `first`.

        Returns (hidden values, last states). The first direction runs forward.
        """
        own = [t.slice_axis(s, 0, first, first + run_count) for s in states]
        weights = [w for direction in range(first, first + run_count) for w in _weights(n, direction, hidden)]
        return layers(x, own, weights, cell=cell, activations=acts[first], hidden=hidden, width=hidden, count=1,
                      directions=run_count, variant=_variant(n))  # fmt: skip

    def turned_back(x: Tensor) -> Tensor:
        return t.flip(x, 0) if lengths is None else reversed_within(x, lengths, 1, 0)

    def backwards(direction: int) -> tuple[Tensor, list[Tensor]]:
        out, last = run(turned_back(x), direction, 1)
        return turned_back(out), last

    if kind == "reverse":
        out, last = backwards(0)
    elif directions == 1 or (len(set(acts)) == 1 and lengths is None):
        out, last = run(x, 0, directions)
    else:  # the directions have different activations or ends
        (ahead, one), (back, other) = run(x, 0, 1), backwards(1)
        out, last = t.concat([ahead, back], 2), [t.concat(pair, 0) for pair in zip(one, other)]
    out = t.reshape(out, (steps, batch, directions, hidden))
    if lengths is not None:
        out, last = _ended(out, lengths, kind)
    return [
        t.permute(out, (1, 0, 2, 3) if batch_first else (0, 2, 1, 3)),
        *(t.swapaxes(s, 0, 1) if batch_first else s for s in last),
    ]


def _ended(out: Tensor, lengths: Tensor, kind: str) -> tuple[Tensor, list[Tensor]]:
    """Hidden values out[steps, batch, directions, hidden] with zeros after the end of each sample, and the last ones
    [directions, batch, hidden]: at the end of a sample, or at its beginning if the direction is backwards; 0 for a
    sample without steps, as in ONNX Runtime."""
    place, length = places(out, lengths, 1, 0)
    out = t.where(t.lt(place, length), out, 0)
    ends = []
    for direction in range(out.shape[2] if isinstance(out.shape[2], int) else 0):
        own = t.slice_axis(out, 2, direction, direction + 1)
        backwards = kind == "reverse" or direction == 1
        at = t.broadcast_to(t.mul(length, 0) if backwards else t.maximum(t.sub(length, 1), 0), (1, *own.shape[1:]))
        ends.append(t.squeeze(t.gather_elements(own, at, 0), 0))
    last = t.permute(t.concat(ends, 1), (1, 0, 2))
    return out, [t.where(t.gt(t.reshape(length, (1, -1, 1)), 0), last, 0)]
