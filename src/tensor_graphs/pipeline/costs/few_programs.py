"""Corrects predicted prices of GPU kernels that have fewer programs (blocks) than the GPU has multiprocessors: one that
reduces rows and then writes along them reads each row in one program, whatever the schedule.

Predictions do not see that: the stored columns of a kernel have its result's sizes, not the number of its rows. On an
H200 a group norm of eight groups took 364 µs where 7 to 16 were predicted, and nothing else in its plan was as wrong.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from ...backends.machine import of_key
from ...costdb.price.predict import Query
from ...costdb.price.roofline import DeviceRoofline
from ...egraph.evaluate.interpret import expand_all
from ...egraph.ir.memo import memo
from ...egraph.ir.tensor import Tensor, topological
from ...extract.model.kernel import Candidate
from ...extract.model.pricing import Priced

SHARES = 4.0  # shares of the bandwidth of all multiprocessors that a single one can draw at most


def is_gpu(device: str) -> bool:
    """Whether a device, as the keys of stored times name it, is a GPU."""
    return device.startswith("gpu:")


def few_programs(candidate: Candidate) -> float:
    """Most programs among which a candidate's kernel divides its rows; infinite if it divides the rows themselves, too,
    or if that is unknown."""
    template, call = candidate.template, candidate.call
    if template.family != "reduction":
        return math.inf
    if template.name == "cuda.group_norm":
        return _number(call.operands["x"].type.shape[:1]) * float(call.attrs["groups"])
    return _rows(tuple(template.roots))


@memo(4096)
def _rows(roots: tuple[Tensor, ...]) -> float:
    """Fewest rows of a reduction in the terms of a kernel whose results have more elements than that; infinite
    otherwise."""
    rows = min((_number(t.shape) for t in topological(expand_all(list(roots))) if t.entry.monoid), default=math.inf)
    return rows if roots and rows < max(_number(t.shape) for t in roots) < math.inf else math.inf


def _number(shape: Sequence[object]) -> float:
    sizes = [d for d in shape if isinstance(d, int)]
    return float(math.prod(sizes)) if len(sizes) == len(shape) else math.inf


def priced_in_few_programs(priced: Priced, programs: float, query: Query, roofline: DeviceRoofline) -> Priced:
    """A predicted price of a kernel that runs in `programs` programs: at least the time in which their multiprocessors
    move its bytes at their share of the bandwidth, with an interval from what they can draw at most."""
    device = query.key.device
    share = programs / of_key(device).multiprocessors
    if share >= 1.0 or priced.source == "measured" or not is_gpu(device) or priced.us == math.inf:
        return priced
    moving = query.work.bytes / roofline.bytes_per_us
    least, us = (roofline.launch_us + moving / min(1.0, part) for part in (SHARES * share, share))
    return replace(priced, us=max(priced.us, us), low=max(priced.low, least), high=max(priced.high, us))


__all__ = ["few_programs", "is_gpu", "priced_in_few_programs"]
