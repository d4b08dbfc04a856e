"""Estimates the time of NumPy's reductions and running sums from the loops that NumPy makes: neither their flops nor
their bytes tell it, since a short row costs as much as a hundred elements.

NumPy orders axes by strides and calls one inner loop for each run of elements that are adjacent in memory and all
reduced, or all kept. Constants are of two server cores (AVX2 and AVX-512), which agree within 1.4 times for sums and
maxima of 128 to 1,000,000 elements in rows of 3 to 32,000. Relatives (related_kernels.py) correct them where some are
measured.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

SPREAD = 2.0  # estimate over measured time is at most this in nine of ten reductions on the cores that were measured
CALL_US = 1.3  # µs of a call beyond that of an elementwise function: reductions prepare an iterator over both operands
KEPT_US = 1.0e-4  # µs an element where the innermost axis is kept: rows are added to rows, vectorized
LEAST_LOOP_US = 0.005  # µs of an inner loop over kept elements


class _Loops(NamedTuple):
    """µs of an inner loop, and of an element in it, where the innermost axis is reduced."""

    loop_us: float
    element_us: float


_SUM, _MAX, _SCAN = _Loops(0.020, 1.9e-4), _Loops(0.043, 7e-5), _Loops(0.020, 3.9e-3)
RATES: Mapping[str, _Loops] = {
    "np.sum": _SUM, "np.mean": _SUM, "np.prod": _Loops(0.015, 1.0e-3), "np.max": _MAX, "np.min": _MAX,
    "np.argmax": _MAX, "np.argmin": _MAX, "np.cumsum": _SCAN, "np.cumprod": _SCAN,
}  # fmt: skip


def loops_us(columns: Mapping[str, Any]) -> float:
    """µs of a key (a kernel at one shape, layout, schedule and machine) by its `columns`, without the launch; 0 for
    kernels other than NumPy's reductions and scans."""
    if columns["backend"] != "numpy" or columns["name"] not in RATES:
        return 0.0
    return _loops_us(columns["name"], columns["shapes"], columns["strides"])


@lru_cache(maxsize=1 << 14)
def _loops_us(name: str, shapes: str, strides: str) -> float:
    rates, (shape, result) = RATES[name], json.loads(shapes)[:2]
    elements = float(math.prod(shape))
    if not elements:
        return CALL_US
    reduced = {i for i, (size, left) in enumerate(zip(shape, result)) if size != left}  # of a scan none
    inner, length = _innermost(shape, json.loads(strides)[0], reduced)
    loops = elements / length
    if inner or rates is _SCAN:
        return CALL_US + loops * rates.loop_us + elements * rates.element_us
    return CALL_US + loops * LEAST_LOOP_US + elements * KEPT_US


def _innermost(shape: Sequence[int], strides: Sequence[int], reduced: set[int]) -> tuple[bool, int]:
    """Whether the innermost axis in memory is reduced, and the elements of its inner loop: axes of one kind that lie
    one after the other are one loop."""
    order = sorted((i for i, size in enumerate(shape) if size > 1), key=lambda i: (abs(strides[i]), -i))
    if not order:
        return True, 1
    first, length, step = order[0], shape[order[0]], abs(strides[order[0]]) * shape[order[0]]
    for i in order[1:] if reduced else ():
        if (i in reduced) != (first in reduced) or abs(strides[i]) != step:
            break
        length, step = length * shape[i], step * shape[i]
    return first in reduced, length


__all__ = ["RATES", "SPREAD", "loops_us"]
