"""Checks that a graph's outputs agree with those of the function that it was traced from, up to rounding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from ...backends.verification.rounding_noise import RoundingSensitivity
from ...egraph.ir.graph import Graph
from ...egraph.ir.tensor import Tensor, topological
from ...egraph.types import dtypes
from ...errors import TraceError
from ...verification.accumulation import summation_error
from ...verification.comparison import allowed_error, misplaced, relative_error

Array = np.ndarray[Any, Any]
MAX_ROUNDING_ERROR = 0.1  # relative error up to which results differ by rounding; larger ones have to be explained
ROUNDINGS = 16.0  # allowed multiple of a program's tolerance when both run in their own dtypes


class Rounding:
    """Decides which differences between the outputs of a graph and of the function that it was traced from rounding
    explains.

    `graph`: has no composite ops. `values`: inputs and states by name, on which both were run. `found`, `sharp`: the
    graph's outputs, computed in its own dtypes and in float64 (the same object where there was no time for these).
    """

    def __init__(
        self, graph: Graph, values: Mapping[str, Array], found: Sequence[Array], sharp: Sequence[Array]
    ) -> None:
        self.roots, self.found, self.sharp = graph.outputs, found, sharp
        self._sums = summation_error(self.roots)
        self._disturbed = RoundingSensitivity(graph, values)

    def limit(self, output: int) -> float:
        """Largest relative error of float output number `output` that needs no explanation: a multiple of the graph's
        own rounding error, and what another order of sums may cause."""
        error = relative_error(self.found[output], self.sharp[output])
        rounding = allowed_error("fast", error, self.roots[output].dtype) * ROUNDINGS
        return min(MAX_ROUNDING_ERROR, rounding + self._sums[output])

    def accepts(self, output: int, own: Array, exact: Array | None = None) -> bool:
        """Whether output number `output` of the function, `own`, equals the graph's up to rounding.

        `exact`: the same output of a call with float64 inputs, which may have NaN and infinities of its own; None if it
        is not known, or has another shape.
        """
        found, root = self.found[output], self.roots[output]
        return near(root, found, own, exact, self.sharp[output], self.limit(output)) or self.explains(output, own)

    def explains(self, output: int, own: Array) -> bool:
        """Whether rounding explains every difference between output number `output` of the traced function (`own`) and
        of its graph (cancellation, ties, discontinuities).

        The graph runs up to eleven times with random noise of the size of its dtypes' rounding
        (`backends/verification/rounding_noise.py`).
        """
        found = np.asarray(self.found[output])
        floats = dtypes.is_float(dtypes.name_of(found.dtype))
        with np.errstate(all="ignore"):
            overflows = floats & ~np.isfinite(found) & np.isfinite(self.sharp[output])  # in the order of its sums
            # sums that are beyond the dtype's range: an infinity, or NaN where their parts are infinities of both signs
            beyond = floats & (self._sums[output] > 0) & ~np.isfinite(found)
            if self.sharp is not self.found:  # NaN of a float64 run is no overflow
                beyond &= np.isinf(self.sharp[output])
            found = np.where(overflows, self.sharp[output], found)
            same = (own == found) | ((own != own) & (found != found)) | ((overflows | beyond) & ~np.isfinite(own))
            gap = np.where(same, 0.0, np.abs(np.asarray(found, np.float64) - np.asarray(own, np.float64)))
            fine = np.abs(np.asarray(own, np.float64)) * self.limit(output) if floats else 0.0
            off = ~same & ~((gap <= fine) & np.isfinite(gap))  # an infinity explains no other value
            for movements in self._disturbed.refined() if off.any() else ():
                moved = movements[output]
                off &= ~(gap <= moved) & (moved != np.inf) if floats else ~moved
                if not off.any():
                    break
        return not off.any()


def refuse_type(function: Any, name: str, root: Tensor, own: Array, shape: tuple[int, ...]) -> None:
    """Raise TraceError if the output `name` of a function or module, `own`, has another dtype than its graph's output
    `root`, or another shape than `shape`."""
    if own.shape != shape or dtypes.name_of(own.dtype) != root.dtype:
        raise TraceError(
            f"output {name!r} of the function is {own.dtype}{list(own.shape)}, of its graph {root.type}", where=title_of(function),
            hint="a Python condition on shapes, types or values was decided while tracing",
        )  # fmt: skip


def refuse(function: Any, name: str, own: Array, found: Array, values: Mapping[str, Array]) -> NoReturn:
    """Raise TraceError for the output `name`, with the index of the largest difference between the function's value
    `own` and the graph's value `found`. `values`: the inputs, for the message.
    """
    with np.errstate(invalid="ignore"):
        gap = np.abs(np.asarray(found, np.float64) - np.asarray(own, np.float64))
    gap = np.where((found == own) | ((found != found) & (own != own)), 0, np.where(gap == gap, gap, np.inf))
    place = tuple(map(int, np.unravel_index(int(np.argmax(gap)), gap.shape))) if gap.ndim else ()
    raise TraceError(
        f"output {name!r} of the function differs from that of its graph: at {list(place)} the function gives {own[place]!s},"
        f" the graph {found[place]!s}",
        where=f"{title_of(function)} called with {', '.join(f'{n}: {v.dtype}{list(v.shape)}' for n, v in values.items())}",
        hint="something in the function was decided while tracing (a condition, a captured value, state): use np.where, or pass it as an"
        " argument",
    )


def near(
    root: Tensor, found: Array, own: Array, exact: Array | None = None, sharp: Array | None = None,
    limit: float | None = None,
) -> bool:  # fmt: skip
    """Whether a graph's output `found` in its own dtypes equals the function's output `own` up to a relative error.

    Integers and booleans must be equal, except elements computed from floats whose value differs between runs of the
    graph in its dtypes and in float64 (`sharp`). `exact`: the function's output in float64. `limit`: of floats; None:
    rounding of a single operation."""
    if not dtypes.is_float(root.dtype):
        unstable = False if sharp is None or not _reads_floats(root) else found != sharp  # rounding decides these
        return not bool(np.any((found != own) & ~np.asarray(unstable)))
    if misplaced(found, own, own if exact is None or exact.shape != own.shape else exact):
        return False
    return relative_error(found, own) <= (
        ROUNDINGS * allowed_error("fast", 0.0, root.dtype) if limit is None else limit
    )


def _reads_floats(root: Tensor) -> bool:
    return any(dtypes.is_float(n.dtype) for n in topological([root]))


def title_of(function: Any) -> str:
    """Name of a function or module in messages: its `__name__`, else its class."""
    return str(getattr(function, "__name__", type(function).__name__))


__all__ = ["Rounding", "near", "refuse", "refuse_type", "title_of"]
