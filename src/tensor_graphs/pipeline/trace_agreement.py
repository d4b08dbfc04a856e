"""Checks that a graph's outputs agree with those of the function that it was traced from, up to rounding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np

from ..backends.verification.rounding_noise import RoundingSensitivity
from ..egraph.ir import dtypes
from ..egraph.ir.graph import Graph
from ..egraph.ir.interpret import expand_all
from ..egraph.ir.tensor import Tensor, topological
from ..errors import TraceError
from ..verification.comparison import allowed_error, misplaced, pieces, relative_error

Array = np.ndarray[Any, Any]
SHARP = 1e-6  # float64 tolerance: relative to the element, and
FINE = 1e-10  # relative to the largest element
ENLARGED = 1e5  # growth of a rounding error that later operations may cause,
LARGEST = 0.1  # and the largest relative error that counts as one: results that differ more have to be explained
ROUNDINGS = 16.0  # allowed multiple of a program's tolerance when both run in their own dtypes


class Rounding:
    """Elements of a graph's outputs that rounding decides on given inputs (cancellation, ties, discontinuities)."""

    def __init__(self, graph: Graph, values: Mapping[str, Array]) -> None:
        self._disturbed = RoundingSensitivity(graph.with_roots(expand_all(graph.roots, wide_means=True)), values)

    def explains(self, output: int, own: Array, found: Array) -> bool:
        """Whether rounding explains every difference between output number `output` of the traced function (`own`) and
        of its graph (`found`).

        The graph runs up to eleven times with random noise of the size of its dtypes' rounding
        (`backends/verification/rounding_noise.py`).
        """
        with np.errstate(all="ignore"):
            same = (own == found) | ((own != own) & (found != found))
            gap = np.where(same, 0.0, np.abs(np.asarray(found, np.float64) - np.asarray(own, np.float64)))
            floats = dtypes.is_float(dtypes.name_of(found.dtype))
            fine = np.abs(np.asarray(own, np.float64)) * allowed_error("fast", 0.0, found.dtype.name) if floats else 0.0
            off = ~same & ~((gap <= fine) & np.isfinite(gap))  # an infinity explains no other value
            for movements in self._disturbed.refined() if off.any() else ():
                moved = movements[output]
                off &= ~(gap <= moved) & (moved != np.inf) if floats else ~moved
                if not off.any():
                    break
        return not off.any()


def agrees(function: Any, name: str, root: Tensor, own: Array, exact: Array | None, found: Array, sharp: Array) -> bool:
    """Whether an output of the graph (`found`) equals the function's (`own`) up to rounding.

    `sharp`, `exact`: the output of the graph and of the function in float64 (`exact` None: unknown). `root`: the output
    in the graph. Raises TraceError, which names `function` and the output `name`, for another shape or dtype.
    """
    if own.shape != found.shape or dtypes.name_of(own.dtype) != root.dtype:
        raise TraceError(
            f"output {name!r} of the function is {own.dtype}{list(own.shape)}, of its graph {root.type}", where=title_of(function),
            hint="a Python condition on shapes, types or values was decided while tracing",
        )  # fmt: skip
    if (
        exact is not None
        and exact.shape == sharp.shape
        and _equal(root.dtype, sharp, exact)
        and _roughly(root, found, own)
    ):
        return True
    return near(root, found, own, exact if exact is not None and exact.shape == own.shape else own, sharp)


def refuse(function: Any, name: str, own: Array, found: Array, values: Mapping[str, Array]) -> NoReturn:
    """Raise TraceError for the output `name`, with the index of the largest difference between the function's value
    `own` and the graph's value `found`. `values`: the inputs, for the message.
    """
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


def _equal(dtype: str, y: Array, exact: Array) -> bool:
    """Whether the graph's and the function's float64 results agree."""
    if not dtypes.is_float(dtype):
        return bool(np.array_equal(y, exact))
    if misplaced(y, exact, exact):
        return False
    scale = max((float(np.abs(b).max(initial=0.0, where=np.isfinite(b))) for (b,) in pieces(exact)), default=0.0)
    with np.errstate(invalid="ignore"):
        return all(
            bool(np.all((np.abs(a - b) <= SHARP * np.abs(b) + FINE * scale) | ~np.isfinite(b)))
            for a, b in pieces(y, exact)
        )


def _roughly(root: Tensor, y: Array, own: Array) -> bool:
    """Whether an output in the graph's own dtypes agrees with the function's, up to amplified rounding. The comparison
    in float64 alone does not suffice: a function may decide by the dtype."""
    if not dtypes.is_float(root.dtype):
        return bool(np.array_equal(y, own))
    return bool(relative_error(y, own) <= min(LARGEST, allowed_error("fast", 0.0, root.dtype) * ENLARGED))


def near(root: Tensor, y: Array, own: Array, exact: Array, sharp: Array | None = None) -> bool:
    """Whether a graph's output `y` in its own dtypes equals the function's output `own` up to rounding.

    Integers and booleans must be equal, except elements computed from floats whose value differs between runs of the
    graph in its dtypes and in float64 (`sharp`). `exact`: the function's output in float64."""
    if not dtypes.is_float(root.dtype):
        unstable = False if sharp is None or not _reads_floats(root) else y != sharp  # rounding decides these elements
        return not bool(np.any((y != own) & ~np.asarray(unstable)))
    if misplaced(y, own, exact):
        return False
    rounding = min(LARGEST, 2 * relative_error(own, exact))
    return bool(relative_error(y, own) <= min(LARGEST, allowed_error("fast", rounding, root.dtype) * ROUNDINGS))


def _reads_floats(root: Tensor) -> bool:
    return any(dtypes.is_float(n.dtype) for n in topological([root]))


def title_of(function: Any) -> str:
    """Name of a function or module in messages: its `__name__`, else its class."""
    return str(getattr(function, "__name__", type(function).__name__))


__all__ = ["Rounding", "agrees", "near", "refuse", "title_of"]
