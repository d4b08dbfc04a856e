"""Gradient-boosted regression trees of fixed depth on binned features, in NumPy (Friedman 2001; histograms as in LightGBM).

Small and deterministic: a few thousand rows of some thirty features fit within a second."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float64]]
Index = np.ndarray[Any, np.dtype[np.int64]]

BINS = 32  # of a feature, by quantiles
TREES, DEPTH, RATE = 160, 5, 0.12
LEAST_ROWS = 4  # of a leaf
SHRINKAGE = 2.0  # rows of residual 0 that each leaf's mean includes


@dataclass(frozen=True)
class BoostedTrees:
    """A fitted model: bin edges per feature; per tree the feature and bin that split each inner node (breadth-first
    order), and the value of each leaf; and the mean of the targets."""

    edges: Array  # (features, BINS - 1)
    feature: Index  # (trees, 2**depth - 1)
    bin: Index  # (trees, 2**depth - 1): rows in higher bins go right
    leaf: Array  # (trees, 2**depth)
    mean: float

    def predict(self, rows: Array) -> Array:
        """Predicted targets of feature rows (n, features)."""
        binned, trees = _binned(rows, self.edges), np.arange(len(self.feature))
        node = np.zeros((len(rows), len(trees)), dtype=np.int64)
        inner = self.feature.shape[1]
        for _ in range((inner + 1).bit_length() - 1):
            higher = np.take_along_axis(binned, self.feature[trees, node], axis=1) > self.bin[trees, node]
            node = 2 * node + 1 + higher
        return np.asarray(self.mean + self.leaf[trees, node - inner].sum(axis=1))


def fit(rows: Array, targets: Array, trees: int = TREES, depth: int = DEPTH) -> BoostedTrees:
    """Fit squared error of targets (n,) on finite feature rows (n, features); n is at least 1."""
    quantiles = np.quantile(rows, np.linspace(0, 1, BINS + 1)[1:-1], axis=0, method="nearest").T
    edges, mean = quantiles.astype(np.float32).astype(np.float64), float(targets.mean())
    binned = _binned(rows, edges)
    residual = targets - mean
    found = [_tree(binned, residual, depth) for _ in range(trees)]
    feature, bins, leaf = (np.stack(part) for part in zip(*found))
    return BoostedTrees(edges, feature, bins, leaf, mean)


def _binned(rows: Array, edges: Array) -> Index:
    """Bin numbers of feature rows: the number of edges below each value, compared in float32, in which models are stored."""
    single = rows.T.astype(np.float32).astype(np.float64)
    columns = [np.searchsorted(edge, column, side="left") for edge, column in zip(edges, single)]
    return np.stack(columns, axis=1) if columns else np.zeros((len(rows), 0), dtype=np.int64)


def _tree(binned: Index, residual: Array, depth: int) -> tuple[Index, Index, Array]:
    """Fit one tree to the residuals and subtract its prediction from them: (feature, bin, leaf value)."""
    count, features = binned.shape
    cells = binned + BINS * np.arange(features)
    node = np.zeros(count, dtype=np.int64)
    feature, bins = np.zeros(2**depth - 1, dtype=np.int64), np.full(2**depth - 1, BINS, dtype=np.int64)
    for level in range(depth):
        nodes, first = 2**level, 2**level - 1
        best, at = _splits(cells + (features * BINS * node)[:, None], residual, nodes, features)
        feature[first : first + nodes], bins[first : first + nodes] = best, at
        node = 2 * node + (np.take_along_axis(binned, best[node][:, None], axis=1)[:, 0] > at[node])
    sums = np.bincount(node, residual, 2**depth)
    leaf = RATE * sums / (np.bincount(node, minlength=2**depth) + SHRINKAGE)
    residual -= leaf[node]
    return feature, bins, leaf


def _splits(cells: Index, residual: Array, nodes: int, features: int) -> tuple[Index, Index]:
    """The split of each node that reduces the squared error most: (feature, bin). BINS where none is allowed."""
    size, shape = nodes * features * BINS, (nodes, features, BINS)
    weights = np.broadcast_to(residual[:, None], cells.shape).ravel()
    sums = np.bincount(cells.ravel(), weights, size).reshape(shape).cumsum(axis=2)
    counts = np.bincount(cells.ravel(), minlength=size).reshape(shape).cumsum(axis=2)
    right_sums, right = sums[..., -1:] - sums, counts[..., -1:] - counts
    gain = sums**2 / (counts + SHRINKAGE) + right_sums**2 / (right + SHRINKAGE)
    gain[(counts < LEAST_ROWS) | (right < LEAST_ROWS)] = -np.inf
    best = gain.reshape(nodes, -1).argmax(axis=1)
    possible = np.take_along_axis(gain.reshape(nodes, -1), best[:, None], axis=1)[:, 0] > -np.inf
    return best // BINS, np.where(possible, best % BINS, BINS)


__all__ = ["BoostedTrees", "fit"]
