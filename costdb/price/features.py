"""Features of a kernel in a schedule for the learnt ranking: sizes, work, and the schedule against them.

All are numbers from the columns of a key, in logarithms of base 2; a schedule's parameter that is absent has the value -1.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any

import numpy as np

from ...egraph.ir.dtypes import itemsize
from ..keys.key import Work
from .boosting import Array

#: Schedule parameters that are features (docs/schedules.md); others are ignored.
PARAMETERS = ("m", "n", "k0", "k1", "warps", "stages", "group", "split", "precision", "deep", "high", "wide", "threads",
              "down", "across", "parts", "turns", "ahead", "tall", "x", "y", "z", "tm", "tn", "t0", "t1", "vm", "vn", "v0",
              "um", "un", "u0")  # fmt: skip
#: Parameters that are there or not.
FLAGS = ("early", "boxes", "inside", "walk", "join", "roles", "tiles", "beside")
MULTIPROCESSORS = 132  # of the devices that the ratio of tiles to multiprocessors is about


def features(columns: Sequence[Mapping[str, Any]], work: Sequence[Work]) -> Array:
    """One feature row per key, given its columns (texts, as stored) and work."""
    rows = [
        _row(f"{c['backend']} {c['family']}", c["name"], c["shapes"], c["strides"], c["dtypes"], c["schedule"], w)
        for c, w in zip(columns, work)
    ]
    return np.array(rows, dtype=np.float64)


def _row(kind: str, name: str, shapes: str, strides: str, dtypes: str, schedule: str, work: Work) -> list[float]:
    sizes = _sizes(shapes, dtypes)
    known = schedule_of(schedule)
    own = [_log(known[name]) if name in known else -1.0 for name in PARAMETERS]
    flags = [float(name in known) for name in FLAGS]
    return [
        _log(work.flops), _log(work.bytes), _log(work.flops) - _log(work.bytes), *sizes, *own, *flags,
        *_tiles(known, sizes), *_layouts(shapes, strides, dtypes), *_form(kind, name, tuple(sorted(known))),
    ]  # fmt: skip


def _tiles(known: Mapping[str, int], sizes: Sequence[float]) -> list[float]:
    """Tiles of the result per multiprocessor and their share in the last wave, elements of a tile and per warp, padding,
    and elements in flight."""
    rows, columns = 2.0 ** sizes[0], 2.0 ** sizes[1]
    m, n = max(1, known.get("m", 1)), max(1, known.get("n", 1))
    tiles = math.ceil(rows / m) * math.ceil(columns / n) * max(1, known.get("split", 1)) * max(1, known.get("parts", 1))
    waves = tiles / MULTIPROCESSORS
    k, stages, warps = known.get("k0", known.get("deep", 1)), known.get("stages", 1), known.get("warps", 4)
    padding = m * math.ceil(rows / m) * n * math.ceil(columns / n) / (rows * columns)
    return [
        _log(waves), waves / math.ceil(waves), _log(m * n), _log(m * n / max(1, warps)), _log(padding),
        _log((m + n) * max(1, k) * max(1, stages)), sizes[2] - _log(max(1, k) * max(1, known.get("split", 1))),
    ]  # fmt: skip


@lru_cache(maxsize=1 << 14)
def _sizes(shapes: str, dtypes: str) -> tuple[float, ...]:
    """Rows and columns of the (last) result, the longest axis of the operands, number of operands, largest and smallest
    item size, elements of the largest operand."""
    found = [tuple(s) for s in json.loads(shapes)] or [()]
    types = json.loads(dtypes) or ["float32"]
    result = found[-1] or (1,)
    operands = found[:-1] or found
    sizes = [itemsize(t) for t in types]
    return (
        _log(math.prod(result[:-1])), _log(result[-1]), _log(max((max(s, default=1) for s in operands), default=1)),
        float(len(found)), float(max(sizes)), float(min(sizes)), _log(max(math.prod(s) for s in operands)),
    )  # fmt: skip


@lru_cache(maxsize=1 << 14)
def _layouts(shapes: str, strides: str, dtypes: str) -> tuple[float, ...]:
    """Number of different memory orders, number of strided operands, and log of the least alignment of rows in bytes.

    Memory orders: among operands and results of several axes. Strided: the innermost axis is not contiguous.
    """
    orders, strided, aligned = set(), 0, 16
    for sizes, steps, dtype in zip(json.loads(shapes), json.loads(strides), json.loads(dtypes)):
        axes = [(abs(step), n) for n, (size, step) in enumerate(zip(sizes, steps)) if size > 1]
        if len(axes) > 1:
            least, *others = sorted(axes)
            orders.add((len(sizes), tuple(n for _, n in sorted(axes))))
            strided += least[0] != 1
            aligned = min(aligned, *(math.gcd(16, step * itemsize(dtype)) for step, _ in others))
    return float(len(orders)), float(strided), _log(aligned)


@lru_cache(maxsize=1 << 14)
def _form(kind: str, name: str, names: tuple[str, ...]) -> tuple[float, ...]:
    """Numbers from hashes of the backend and family, the kernel's name, and the schedule's form."""
    return _bucket(kind), _bucket(name), _bucket(repr(names))


def _bucket(text: str) -> float:
    return float(blake2b(text.encode(), digest_size=1).digest()[0])


@lru_cache(maxsize=1 << 14)
def schedule_of(text: str) -> Mapping[str, int]:
    """The schedule of a column's text; empty for any other content."""
    try:
        found = dict(json.loads(text)) if text else {}
    except (ValueError, TypeError):
        return {}
    return found if all(type(v) is int and 0 <= v < 1 << 31 for v in found.values()) else {}


def _log(value: float) -> float:
    return math.log2(value) if value > 0 else -1.0


#: Number of features.
COUNT = len(_row("", "", "[[1]]", "[[1]]", '["float32"]', "", Work(1.0, 1.0)))

__all__ = ["COUNT", "features", "schedule_of"]
