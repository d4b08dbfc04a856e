"""Declares the library kernel in C for recurrent layers (recurrent_text.py): LSTM, GRU and plain cells of float32, with
the activations of PyTorch's layers, and ONNX's GRU that resets the hidden values before the product."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

import numpy as np

from ...egraph.ops.law_text import GATES
from ...extract.model.kernel import Call
from ...extract.model.library_kernel import LibraryKernel, identified
from ..ir.definitions import source_of
from ..library.numpy_products import RECURRENT as PATTERN
from ..library.torch_calls import SINGLE, both, extents, filled, usable
from . import convolutions
from .call_facts import LARGEST, few_elements
from .convolutions import from_cache_line
from .linear_products import known_sizes
from .recurrent_text import BLOCK, CELLS, LAYERS

VERSION = blake2b("".join((*convolutions.SOURCE.values(), LAYERS, *CELLS.values())).encode(), digest_size=4).hexdigest()

#: (cell, variant, activations) of the op `recurrent` -> C function.
FUNCTIONS: Mapping[tuple[str, str, str], str] = {
    ("lstm", "", "sigmoid tanh tanh"): "tiled_lstm",
    ("gru", "", "sigmoid tanh"): "tiled_gru",
    ("gru", "reset first", "sigmoid tanh"): "tiled_gru_reset_first",
    ("plain", "", "tanh"): "tiled_rnn_tanh",
    ("plain", "", "relu"): "tiled_rnn_relu",
}


def recurrent_tiled(w: Any, cell: str, variant: str, size: int, hidden: int, layers: int, directions: int) -> Any:
    """Weights of recurrent layers (one vector, `recurrent.layers`) as the C function reads them, in one vector that
    begins at a cache line: per layer and direction the weights of the input [block][gate][size][16], biases
    [block][gate][16], of a GRU the bias of the new value's recurrent product [block][16], and the recurrent weights
    [block][hidden][gate][16]. A GRU with the variant "reset first" has all biases in the first ones, and recurrent
    weights of two gates, then of the third. Zeros fill the last block.
    """
    gates = {"lstm": 4, "gru": 3, "plain": 1}[cell]
    rows, blocks, taken, parts = gates * hidden, -(-hidden // 16), 0, []
    inner = cell == "gru" and not variant  # whether a bias belongs to a recurrent product
    w = np.asarray(w)

    def tiled(values: Any) -> Any:  # [gate * hidden, ...] -> [gate, block, 16, ...]
        padded = np.zeros((gates, blocks * 16, *values.shape[1:]), np.float32)
        padded[:, :hidden] = values.reshape(gates, hidden, *values.shape[1:])
        return padded.reshape(gates, blocks, 16, *values.shape[1:])

    for _ in range(layers):
        for _ in range(directions):
            shapes = (rows, size), (rows, hidden), (rows, 1), (rows, 1)
            ends = np.cumsum([taken, *(a * b for a, b in shapes)])
            w_x, w_h, b_x, b_h = (tiled(w[a:b].reshape(s)) for a, b, s in zip(ends, ends[1:], shapes))
            taken = ends[-1]
            b_x[: 2 if inner else None] += b_h[: 2 if inner else None]
            recurrent = [w_h[:2], w_h[2:]] if variant else [w_h]
            parts += [w_x.transpose(1, 0, 3, 2), b_x.transpose(1, 0, 2, 3), *([b_h[2]] if inner else [])]
            parts += [v.transpose(1, 3, 0, 2) for v in recurrent]
        size = directions * hidden
    return from_cache_line(np.concatenate([p.reshape(-1) for p in parts]))


HELPERS: dict[str, str] = {"recurrent_tiled": source_of(recurrent_tiled)}
"""Helper function of emitted programs that packs weights: name -> source."""


def _function(call: Call) -> str | None:
    """C function of a call's cell; None for a cell that C lacks."""
    return FUNCTIONS.get((call.attrs["cell"], call.attrs["variant"], call.attrs["activations"]))


def _fits(call: Call) -> bool:
    """Condition on calls: a cell of C without projection, the values of a row of x side by side, 32-bit sizes."""
    a, x = call.attrs, call.operands["x"]
    if _function(call) is None or a["width"] != a["hidden"] or x.strides[2] != 1 or max(x.strides) >= LARGEST:
        return False
    return _scratch_floats(call) < LARGEST


def _scratch_floats(call: Call) -> int:
    """Floats of scratch memory (`tiled_recurrent`)."""
    (steps, batch, size), a = extents(call.operands["x"]), call.attrs
    wide = a["directions"] * a["hidden"]
    given = steps * batch * a["directions"] * GATES[a["cell"]][0] * BLOCK * -(-a["hidden"] // BLOCK)
    return int(given + batch * wide + max(size, wide) + (steps * batch * wide if a["layers"] > 1 else 0))


def _scratch(call: Call) -> int:
    return 4 * _scratch_floats(call)


def _source(call: Call) -> Mapping[str, str]:
    """C functions of a call and their text."""
    name = _function(call)
    assert name is not None
    return {**convolutions.SOURCE, "tiled_recurrent": LAYERS, name: CELLS[name]}


@identified("c.recurrent_tiled")
def _pack(call: Call) -> str:
    a = call.attrs
    sizes = (extents(call.operands["x"])[2], a["hidden"], a["layers"], a["directions"])
    return f"recurrent_tiled({call.names['w']}, {a['cell']!r}, {a['variant']!r}, {', '.join(map(str, sizes))})"


@identified("c.tiled_recurrent")
def _code(call: Call) -> str:
    a, x = call.attrs, call.operands["x"]
    sizes = (*extents(x), *x.strides[:2], a["hidden"], a["layers"], a["directions"])
    names = ", ".join(call.names[o] for o in ("x", "s", "w", "out", "scratch"))
    return f"{_function(call)}({names}, {', '.join(map(str, sizes))})"


def recurrent_rows() -> list[LibraryKernel]:
    """The library kernel of recurrent layers."""
    return [
        LibraryKernel(
            "c.recurrent", "c", PATTERN, _code, family="recurrent", dense=("s", "w"), prep={"w": _pack}, scratch=_scratch,
            applies=both(usable, SINGLE, filled, known_sizes, _fits, few_elements), source=_source, rate=4.0,
            setup=("address", "c_function", "c_library", "from_cache_line", "recurrent_tiled"), version=VERSION,
        )
    ]  # fmt: skip


__all__ = ["FUNCTIONS", "HELPERS", "recurrent_rows", "recurrent_tiled"]
