"""Counts the flops of nodes of contractions, attention and pooling: functions for the field `work` of op table entries.

Sizes must be concrete.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import numpy as np

from ..types.dims import concrete

if TYPE_CHECKING:
    from ..ir.tensor import Tensor


def product(node: Tensor) -> float:
    """Flops of a matrix product: a multiply-add for each element of the result and of the contracted axis."""
    return 2.0 * prod(concrete(node.shape)) * concrete(node.args[0].shape)[-1]


def convolution(node: Tensor) -> float:
    """Flops of a convolution: a multiply-add for each element of the result and each weight of its output channel."""
    return 2.0 * prod(concrete(node.shape)) * prod(concrete(node.args[1].shape)[1:])


def recurrent_layers(node: Tensor) -> float:
    """Flops of recurrent layers: a multiply-add for each step, row of the batch and weight."""
    steps, batch, _ = concrete(node.args[0].shape)
    return 2.0 * steps * batch * prod(concrete(node.args[2].shape))


def attention(node: Tensor) -> float:
    """Flops of the two products of attention, over the pairs of positions that see each other."""
    q, k, out = concrete(node.args[0].shape), concrete(node.args[1].shape), concrete(node.shape)
    pairs = attended_pairs(q[-2], k[-2], node.attr("causal"), node.attr("window"))
    return 2.0 * prod(out[:-2]) * pairs * (q[-1] + out[-1])


def pooling(node: Tensor) -> float:
    """Flops of pooling: one for each element of the result and of its window."""
    return float(prod(concrete(node.shape)) * prod(node.attr("kernel")))


def attended_pairs(rows: int, columns: int, causal: bool, window: int) -> float:
    """Number of (row, column) pairs of scores that attention computes.

    `causal`: each row sees the columns up to its diagonal, aligned at the last position. `window`: each row sees only
    the last `window` of these columns (0: all).
    """
    if not causal and not window:
        return float(rows * columns)
    ends = np.arange(rows) + columns - rows + 1 if causal else np.full(rows, columns)
    begins = np.arange(rows) + columns - rows + 1 - window if window else np.zeros(rows, np.int64)
    return float((np.clip(ends, 0, columns) - np.clip(begins, 0, columns)).clip(0).sum())
