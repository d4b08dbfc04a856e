"""Comparison of a result with the float64 value of a graph, within the error that rounding may cause.

That error is estimated by evaluating the graph a few times with random noise, of the size of its dtypes' rounding, in
every computed value. Elements that the noise changes (a cancellation, a floor near an integer, an argmax of near ties)
may differ as much; all others must agree. Values with few significant bits, such as 1.5, count as computed exactly
(except results of divisions and gathers), so that ties among them are not exempt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tensor_graphs.egraph.evaluate.interpret import apply, expand_all
from tensor_graphs.egraph.ir.tensor import Tensor, topological
from tensor_graphs.egraph.types import dtypes

Array = np.ndarray[Any, Any]
#: Op -> dtype that it rounds to.
ROUNDS_TO = {"to_float16": "float16", "to_bfloat16": "bfloat16"}
#: Noise by the coarsest float dtype on the way, and what an error may be beside the noise's effect, of the largest
#: value.
NOISE = {"float64": 4e-15, "float32": 1e-6, "float16": 2e-3, "bfloat16": 1.6e-2}
BASE = {"float64": 1e-12, "float32": 2e-5, "float16": 4e-3, "bfloat16": 4e-2}
TIMES = 30.0  # of the largest movement seen under noise
MOVES = ("view", "layout", "index")  # kinds of ops that round nothing
EXACT = (
    "neg",
    "abs",
    "sign",
    "floor",
    "ceil",
    "round",
    "maximum",
    "minimum",
    "where",
    "cast",
    "max",
    "min",
    "relu",
    "full",
    "iota",
)
APPROXIMATE = (
    "div",
    "recip",
    "sqrt",
    "rsqrt",
    "exp",
    "log",
    "log1p",
    "expm1",
    "tanh",
    "erf",
    "sin",
    "cos",
    "atan",
    "pow",
)


def coarsest(nodes: Sequence[Tensor]) -> str:
    """The float dtype of the nodes with the fewest significant bits, those that values are rounded to included."""
    return max(
        (ROUNDS_TO.get(n.op, n.dtype) for n in nodes if dtypes.is_float(n.dtype)),
        key=NOISE.__getitem__,
        default="float64",
    )


class Oracle:
    """The expected values of a graph's roots on one set of data, with their tolerances. `dtype`: float dtype whose
    rounding is allowed, if not that of the graph.
    """

    def __init__(self, roots: Sequence[Tensor], data: Mapping[str, Array], *, dtype: str = "", runs: int = 12) -> None:
        self.roots = expand_all(list(roots))
        self.order, self.data = topological(self.roots), data
        self.dtype = dtype or coarsest(self.order)
        self.want, self.peak = self._run(0.0, None)
        self.moved: list[Array] = [np.zeros(w.shape) for w in self.want]
        for k in range(runs):
            other, _ = self._run(NOISE[self.dtype], np.random.default_rng(k))
            for moved, w, o in zip(self.moved, self.want, other):
                with np.errstate(all="ignore"):
                    gap = np.abs(o.astype(np.float64) - w.astype(np.float64))
                np.maximum(moved, np.where(np.isnan(gap), np.inf, gap), out=moved)

    def _run(self, noise: float, rng: np.random.Generator | None) -> tuple[list[Array], float]:
        live: dict[Tensor, Array] = {}
        peak = 1.0
        for n in self.order:
            if n.op == "constant":
                value = n.data
            elif n.is_leaf:
                value = self.data[str(n.attr("name"))]
            else:
                operands = [live[a] for a in n.args]
                if (
                    rng is not None and n.op in ("floordiv", "mod") and dtypes.is_float(n.dtype)
                ):  # x // x is near a jump
                    operands = [x * (1.0 + noise * rng.uniform(-1, 1, x.shape)) for x in operands]
                with np.errstate(all="ignore"):
                    value = apply(n, operands, float64=True)
            value = np.asarray(value)
            if dtypes.is_float(n.dtype):
                value = value.astype(np.float64)
                if value.size and n.op not in ("full", "constant"):
                    peak = max(peak, float(np.abs(value, where=np.isfinite(value), out=np.zeros(value.shape)).max()))
                if rng is not None and self._rounds(n):
                    value = value * np.where(self._short(n, value), 1.0, 1.0 + noise * rng.uniform(-1, 1, value.shape))
            live[n] = value
        return [live[r] for r in self.roots], peak

    def _rounds(self, n: Tensor) -> bool:
        """Whether an op's result is rounded; casts to narrow dtypes round."""
        if n.is_leaf or n.entry.kind in MOVES:
            return False
        return n.op not in EXACT or (n.op == "cast" and NOISE[n.dtype] >= NOISE[self.dtype] > 1e-12)

    @staticmethod
    def _short(n: Tensor, value: Array) -> Array:
        """Numbers that every dtype holds: of at most seven bits."""
        if n.op in APPROXIMATE:
            return np.zeros(value.shape, np.bool_)
        mantissa = np.frexp(value)[0] * 128
        return np.asarray(mantissa == np.round(mantissa))

    def wrong(self, found: Sequence[Any], tolerance: float = 0.0) -> str:
        """Description of the error of a result; '' if rounding explains all differences."""
        for k, (f, w, moved, root) in enumerate(zip(found, self.want, self.moved, self.roots, strict=True)):
            f = np.asarray(f)
            if f.shape != w.shape:
                return f"output {k} has shape {f.shape}, not {w.shape}"
            if message := self._differs(f, w, moved, root.dtype, tolerance):
                return f"output {k} ({root.type}): {message}"
        return ""

    def _differs(self, f: Array, w: Array, moved: Array, dtype: str, tolerance: float) -> str:
        with np.errstate(all="ignore"):
            if not dtypes.is_float(dtype):
                bad = (f != w) & (moved == 0)
                gap = np.where(bad, 1.0, 0.0)
            else:
                base = (tolerance or max(BASE[dtype], BASE[self.dtype])) * self.peak
                x = f.astype(np.float64)
                gap = np.where((x == w) | (np.isnan(x) & np.isnan(w)), 0.0, np.abs(x - w))
                bad = ~(gap <= base + TIMES * moved)
        if not bad.any():
            return ""
        at = tuple(int(i) for i in np.argwhere(bad)[0])
        return f"{int(bad.sum())} of {bad.size} places differ, at {at} {f[at]!r} for {w[at]!r} (peak {self.peak:.3g}, moved {moved[at]:.3g})"


__all__ = ["Oracle", "coarsest"]
