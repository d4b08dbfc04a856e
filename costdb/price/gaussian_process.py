"""Fits Gaussian process regression with a Matérn-1/2 kernel, in NumPy (Rasmussen and Williams 2006, chapters 2 and 4).

The kernel suits functions with steps, as times of kernels over sizes and schedules are. Fitting solves one linear
system; it is deterministic, and takes 0.1 s for a thousand rows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float64]]
Single = np.ndarray[Any, np.dtype[np.float32]]

LENGTH = 20.0  # distance of standardized features at which the correlation is 1/e
NOISE = 0.002  # variance of the noise, relative to the variance of the function
CAUTION = 0.2  # shift of a prediction far from all rows: an estimate that is too high has no largest relative error
MAX_FEATURE = 3.0  # standardized features are clipped at this value
SPREAD = (0.1, 0.9)  # quantiles of the residuals
CHUNK = 2048  # rows predicted at once


@dataclass(frozen=True)
class GaussianProcess:
    """A fitted Gaussian process.

    Mean and scale of each feature, the standardized rows it was fitted to, their weights, and the mean of the
    targets. `low`, `high`: first and ninth decile of target minus prediction, each row predicted from the others.
    """

    centre: Array  # (features,)
    scale: Array  # (features,)
    rows: Array  # (rows, features)
    weights: Array  # (rows,)
    mean: float
    low: float
    high: float

    def predict(self, rows: Array) -> Array:
        """Predicted targets of feature rows (n, features), lowered by up to CAUTION far from all fitted rows."""
        found, weights = np.empty(len(rows)), self.weights.astype(np.float32)
        for first in range(0, len(rows), CHUNK):
            near = _correlation(_standard(rows[first : first + CHUNK], self.centre, self.scale), *self._known)
            found[first : first + CHUNK] = near @ weights - CAUTION * (1.0 - near.max(axis=1) ** 2)
        return found + self.mean

    @cached_property
    def _known(self) -> tuple[Single, Single]:
        return _with_squares(self.rows)


def fit(rows: Array, targets: Array, emphasis: Array) -> GaussianProcess:
    """Gaussian process fitted to targets (n,) on finite feature rows (n, features); n is at least 1.

    `emphasis` (features,): distance between rows that differ by one standard deviation of a feature; 0 for features
    that are used without standardization.
    """
    plain = emphasis == 0
    spread = rows.std(axis=0)
    centre = np.where(plain, 0.0, rows.mean(axis=0)).astype(np.float32).astype(np.float64)
    scale = np.where(plain | (spread == 0), 1.0, emphasis / np.where(spread == 0, 1.0, spread))
    scale = scale.astype(np.float32).astype(np.float64)
    known = _standard(rows, centre, scale).astype(np.float16).astype(np.float64)  # as models are stored
    mean = float(targets.mean())
    system = _correlation(known, *_with_squares(known)) + NOISE * np.eye(len(known))
    inverse = np.linalg.inv(system)
    weights = inverse @ (targets - mean)
    low, high = np.quantile(weights / np.diag(inverse), SPREAD)  # leave-one-out residuals in closed form
    stored = weights.astype(np.float32).astype(np.float64)
    return GaussianProcess(centre, scale, known, stored, mean, min(0.0, float(low)), max(0.0, float(high)))


def _standard(rows: Array, centre: Array, scale: Array) -> Array:
    return np.clip((rows - centre) * scale, -MAX_FEATURE, MAX_FEATURE)


def _with_squares(rows: Array) -> tuple[Single, Single]:
    """Rows in single precision, and the square of the length of each."""
    single = rows.astype(np.float32)
    return single, (single**2).sum(axis=1)


def _correlation(a: Array, b: Single, b_squares: Single) -> Single:
    """exp(-distance / LENGTH) of all pairs of a row of `a` and one of `b` (standardized, with its `_with_squares`)."""
    left, squares = _with_squares(a)
    found = left @ b.T
    found *= -2.0
    found += squares[:, None]
    found += b_squares[None, :]
    np.sqrt(np.maximum(found, 0.0, out=found), out=found)
    found /= -LENGTH
    return np.asarray(np.exp(found, out=found))


__all__ = ["Array", "GaussianProcess", "fit"]
