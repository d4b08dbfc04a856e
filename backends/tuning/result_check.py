"""Checks a kernel's results against its reference: type, layout, and error norms within limits."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ...egraph.ops.ops import Type
from ...egraph.types import dtypes
from ...egraph.types.dims import concrete
from ...extract.model.kernel import Operand
from ..verification.rounding_noise import RoundingSensitivity, kernel_fault
from .single_kernel import Array

TOLERANCE = {"float64": 1e-9, "float32": 3e-4, "float16": 3e-2, "bfloat16": 1.5e-1}
"""Maximum relative Frobenius error of a kernel."""
PIECE = 1 << 15  # elements whose errors are computed at a time: their arrays stay in a cache


class Wrong(Exception):
    """Raised when a kernel's result has a wrong type or layout, or differs from its reference by more than is
    allowed: by `ratio` times as much, infinite if no such number exists.
    """

    def __init__(self, message: str, ratio: float = math.inf) -> None:
        super().__init__(message)
        self.ratio = ratio


def accuracy(got: Array, want: Array) -> dict[str, float]:
    """Error norms of a result over elements where result and reference are finite.

    Keys: rel_fro, the Frobenius norm of the error over that of the reference; max_abs and max_rel, the largest absolute
    and relative error; max_ulp, the largest error in units in the last place of the result's dtype. Raises Wrong if NaN
    or infinity differ.
    """
    kind = got.dtype if got.dtype.kind == "f" else np.dtype(np.float32)
    found, squares, size = {"max_abs": 0.0, "max_rel": 0.0, "max_ulp": 0.0}, 0.0, 0.0
    for g, w in _pieces(got, want):
        norms, error, own = _norms(g, w, kind)
        found = {name: max(old, norms[name]) for name, old in found.items()}
        squares, size = squares + error, size + own
    norm = math.sqrt(size)
    return {"rel_fro": math.sqrt(squares) / norm if norm else float(squares > 0), **found}


def _pieces(got: Array, want: Array) -> Iterator[tuple[Array, Array]]:
    """Pieces of at most `PIECE` elements of two arrays of equal shape, in float64: temporary arrays of whole outputs
    take several times as long, because each is new memory. In the order of memory if both have the same one."""
    order = np.argsort([-s for s in got.strides], kind="stable")
    a, b = (x.transpose(order).reshape(-1) for x in (got, want))
    for start in range(0, a.size, PIECE):
        yield a[start : start + PIECE].astype(np.float64), b[start : start + PIECE].astype(np.float64)


def _norms(g: Array, w: Array, kind: np.dtype[Any]) -> tuple[dict[str, float], float, float]:
    """The largest errors of a piece, and its sums of squares of the error and of the reference. Raises Wrong if NaN or
    infinity differ."""
    same = np.isfinite(w)
    if not np.array_equal(same, np.isfinite(g)) or not same.all():
        if not np.array_equal(np.isnan(g), np.isnan(w)) or not np.array_equal(g[np.isinf(w)], w[np.isinf(w)]):
            raise Wrong("NaN or infinity in unexpected elements")
        g, w = g[same], w[same]
    error, scale = np.abs(g - w), np.abs(w)
    if not error.size:
        return {"max_abs": 0.0, "max_rel": 0.0, "max_ulp": 0.0}, 0.0, 0.0
    spacing = np.spacing(scale.astype(kind)).astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        norms = {
            "max_abs": float(error.max()),
            "max_rel": float(np.nanmax(np.where(error > 0, error / scale, 0.0))),
            "max_ulp": float(np.nanmax(error / np.maximum(spacing, 1e-300))),
        }
    return norms, float(np.einsum("i,i->", error, error)), float(np.einsum("i,i->", w, w))


def worst(norms: Sequence[dict[str, float]]) -> dict[str, float]:
    """Maximum of each error norm over several outputs."""
    return {name: max(n[name] for n in norms) for name in norms[0]}


def check(
    output: Operand, got: Array, want: Array, k: int, allowed: float, disturbed: RoundingSensitivity
) -> dict[str, float]:
    """Check `got`, output number `k` of a kernel, against the reference `want`; returns its error norms (`accuracy`).

    `allowed`: largest relative error; `disturbed`: sensitivity to rounding. Raises Wrong for another type or layout
    than declared, or a large error overall, in a slice or in an element.
    """
    check_layout(output, got)
    return check_values(output.type, got, want, k, allowed, disturbed)


def check_layout(output: Operand, got: Array) -> None:
    """Raise Wrong if an array has another shape, dtype or strides than the declared output."""
    kind, shape = output.type, concrete(output.type.shape)
    if got.shape != shape or got.dtype != dtypes.numpy_dtype(kind.dtype):
        raise Wrong(f"the result is {got.dtype}{list(got.shape)}, not {kind}")
    strides = tuple(s // got.itemsize for s in got.strides)
    if got.size and any(a != b for a, b, d in zip(strides, output.strides, shape) if d != 1):
        raise Wrong(f"the result has strides {strides}, not {output.strides}")


def check_values(
    kind: Type, got: Array, want: Array, k: int, allowed: float, disturbed: RoundingSensitivity
) -> dict[str, float]:  # fmt: skip
    """Check the values of an output, or of a part of one, against its float64 reference, but not the layout; returns
    error norms. `kind`: type of the output; `k`: number of the output; `allowed`: largest relative error; `disturbed`:
    sensitivity to rounding. Raises Wrong for a large error."""
    if not dtypes.is_float(kind.dtype):
        found, want = {"rel_fro": 0.0, "max_abs": 0.0, "max_rel": 0.0, "max_ulp": 0.0}, want.astype(got.dtype)
    else:
        found = accuracy(got, want)
        if not found["rel_fro"] <= TOLERANCE[kind.dtype]:
            raise Wrong(f"relative error {found['rel_fro']:.3g}")
    if fault := kernel_fault(got, want, k, kind.dtype, allowed, disturbed):
        raise Wrong(fault.message, fault.ratio)
    return found


__all__ = ["TOLERANCE", "Wrong", "accuracy", "check", "check_layout", "check_values", "worst"]
