"""The semantics of the op `recurrent` as a scan over time steps.

`scan` works on NumPy arrays (reference semantics and kernel), Torch tensors (kernel) and tensor expressions
(unrolling): the caller passes activations and concatenation of its array type. The source text of `scan` is copied into
emitted programs, so it must be self-contained.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def scan(
    x: Any, state: Any, w: Any, acts: Any, join: Any, cell: str, variant: str, activations: str, hidden: int, width: int,
    layers: int, directions: int,
) -> Any:  # fmt: skip
    """The op `recurrent` on one kind of arrays: the hidden values of all steps, then the last states, in one vector.

    `acts`: activation functions by name. `join(arrays, axis)` concatenates. Shapes and attributes: `recurrent.layers`.
    """
    functions = [acts[name] for name in activations.split()]
    rows = hidden * {"lstm": 4, "gru": 3, "plain": 1}[cell]
    steps, batch, size = x.shape
    count, taken = layers * directions, 0

    def piece(rows: int, columns: int = 0) -> Any:
        nonlocal taken
        start, taken = taken, taken + rows * (columns or 1)
        return w[start:taken].reshape((rows, columns) if columns else (rows,))

    def block(values: Any, i: int) -> Any:
        return values[:, i * hidden : (i + 1) * hidden]

    cut = count * batch * width
    first = state[:cut].reshape((count, batch, width))
    memories = state[cut:].reshape((count, batch, hidden)) if cell == "lstm" else None
    last, kept = [], []
    for layer in range(layers):
        lines = []
        for way in range(directions):
            w_x, w_h, b_x, b_h = piece(rows, size), piece(rows, width), piece(rows), piece(rows)
            w_out = piece(width, hidden) if width != hidden else None
            peep = piece(3, hidden) if "peephole" in variant else None
            given = x @ w_x.T + b_x
            h = first[layer * directions + way]
            c = memories[layer * directions + way] if memories is not None else None
            line = []
            for i in range(steps) if way == 0 else reversed(range(steps)):
                now = given[i]
                if cell == "plain":
                    h = functions[0](now + (h @ w_h.T + b_h))
                elif cell == "gru":
                    inner = h @ w_h.T + b_h
                    reset, update = (functions[0](block(now, k) + block(inner, k)) for k in (0, 1))
                    if "reset first" in variant:
                        fresh = (reset * h) @ w_h[2 * hidden :].T + b_h[2 * hidden :]
                    else:
                        fresh = reset * block(inner, 2)
                    new = functions[1](block(now, 2) + fresh)
                    h = (1.0 - update) * new + update * h
                else:
                    total = now + (h @ w_h.T + b_h)
                    entry, forget, new, out = (block(total, k) for k in range(4))
                    entry = functions[0](entry if peep is None else entry + peep[0] * c)
                    if "coupled" in variant:
                        forget = 1.0 - entry
                    else:
                        forget = functions[0](forget if peep is None else forget + peep[1] * c)
                    c = forget * c + entry * functions[1](new)
                    h = functions[0](out if peep is None else out + peep[2] * c) * functions[2](c)
                    if w_out is not None:
                        h = h @ w_out.T
                line.append(h.reshape((1, batch, width)))
            lines.append(join(line if way == 0 else line[::-1], 0))
            last.append(h.reshape((batch * width,)))
            if c is not None:
                kept.append(c.reshape((batch * hidden,)))
        x, size = lines[0] if directions == 1 else join(lines, 2), directions * width
    return join([x.reshape((steps * batch * size,)), *last, *kept], 0)


def recurrent(
    x: Array, state: Array, w: Array, cell: str, variant: str, activations: str, hidden: int, width: int, layers: int,
    directions: int,
) -> Array:  # fmt: skip
    """The op `recurrent` on NumPy's arrays, as `scan`; 16-bit floats are computed in float32."""
    acts = {
        "sigmoid": lambda v: 1.0 / (1.0 + np.exp(-v)),
        "tanh": np.tanh,
        "relu": lambda v: np.maximum(v, 0),
        "softplus": lambda v: np.logaddexp(v, 0),
        "softsign": lambda v: v / (np.abs(v) + 1.0),
    }
    kind = x.dtype
    if kind.itemsize == 2:
        x, state, w = (a.astype(np.float32) for a in (x, state, w))
    with np.errstate(all="ignore"):
        found = scan(
            x, state, w, acts, np.concatenate, cell, variant, activations, hidden, width, layers, directions
        )  # fmt: skip
    return np.asarray(found.astype(kind, copy=False))


__all__ = ["recurrent", "scan"]
