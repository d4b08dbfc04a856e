"""Computes the features of a kernel in a schedule (tuning parameters) from which the learnt model predicts: sizes,
work, memory layout, and the schedule against them.

All are numbers from the columns of a key and its work. Sizes and amounts are in logarithms of base 2, with -1 for 0; a
schedule's parameter that is absent counts as 0. Features of the schedule are computed for all rows at once, the others
are cached by the columns' texts.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any

import numpy as np

from ...egraph.types.dtypes import itemsize
from ..keys import rates
from ..keys.key import FORM, Work
from .gaussian_process import Array

PARAMETERS = ("m", "n", "k0", "deep", "tm", "tn", "t0", "um", "un", "u0", "vm", "vn", "v0", "warps", "threads", "stages",
              "split", "parts", "group", "ahead", "k1")  # fmt: skip
"""Schedule parameters that are features (docs/schedules.md); others are ignored."""
FLAGS = ("early", "boxes", "inside", "walk", "join", "roles", "tiles", "beside", "ahead", "group")
"""Schedule parameters of which it is a feature that they are there."""
FAMILIES = ("pointwise", "copy", "reduction", "attention", "conv", "contraction")
PRODUCTS = ("contraction", "conv", "attention")
"""Families whose flops are multiplications and additions over a summed axis, and elementwise operations beside them."""
ELEMENTWISE_RATE = 3e7  # flops per µs of a GPU outside of its tensor cores, by order of magnitude
RESIDENT_THREADS, SHARED_BYTES, WARP = 2048, 227e3, 32.0
"""Resident threads and shared memory of a multiprocessor, threads of a warp: scales of features, equal for all GPUs,
because shipped models were fitted with them. Limits of a GPU are in `backends/machine.py`."""
SMALL = 16  # an operand that is smaller than the largest by this factor is no traffic
NAME_BITS = 16  # signs that tell names, and backends with families, apart
NAME_WEIGHTS = {"cpu": 0.3}
"""Weight of the signs by kind of device, 0 for others: on a GPU traffic decides, names only divide equal kernels."""
Row = np.ndarray[Any, np.dtype[np.float64]]


def features(columns: Sequence[Mapping[str, Any]], work: Sequence[Work]) -> Array:
    """Inputs of the learnt latency model: one row per key (a kernel at one shape, layout, schedule and machine), from
    its `columns` (texts, as stored) and `work` (operations and bytes moved)."""
    calls = np.array([_call(c["shapes"], c["strides"], c["dtypes"]) for c in columns]).T
    known = dict(zip(PARAMETERS, np.array([_parameters(c["schedule"]) for c in columns]).T))
    machine = np.array([_machine(str(c["device"]), c["dtypes"]) for c in columns]).T
    summed = [_summed(str(c["shapes"]), w.flops) if c["family"] in PRODUCTS else 0.0 for c, w in zip(columns, work)]
    amount = np.array([(w.flops, w.bytes, length) for w, length in zip(work, summed)]).T
    sizes, tiles = _sizes(calls, amount, machine), _tiles(calls, known, amount, machine)
    schedules = np.array([_scheduled(c["schedule"]) for c in columns]).T
    kinds = [str(c["device"]).partition(":")[0] for c in columns]
    labels = np.array(
        [_label(str(c["name"]).partition(FORM)[0], c["backend"], c["family"], k) for c, k in zip(columns, kinds)]
    ).T
    return np.concatenate([sizes, tiles, schedules, labels]).T


# ---------------------------------------------------------------- of the call
def _sizes(call: Array, amount: Array, machine: Array) -> Array:
    """Work, elementwise flops per element of the result, roofline, sizes of the result and of operands, and layouts."""
    (flops, size_bytes, _), (_, traffic, peak, _, _, cache) = amount, machine
    rows, columns, largest, longest, total, *others = call
    with np.errstate(divide="ignore"):
        intensity = np.maximum(flops / peak, 1e-6) / np.maximum(size_bytes / traffic, 1e-6)
    amounts = (1.0 + _elementwise(call, amount) / (rows * columns), flops, size_bytes, rows, columns, _depth(call, flops),
               rows * columns, largest, longest, size_bytes / cache, intensity, total / np.maximum(size_bytes, 1.0))  # fmt: skip
    return np.stack([*map(_log, amounts), _log(flops) - _log(size_bytes), *others])


def _depth(call: Array, flops: Array) -> Array:
    """Multiplications and additions per element of the result: the summed length, for a product."""
    return np.asarray(np.maximum(1.0, flops / (2.0 * call[0] * call[1])))


def _elementwise(call: Array, amount: Array) -> Array:
    """Flops beside those of the products: of a fused prologue (before the sum) or epilogue."""
    return np.asarray(np.maximum(0.0, amount[0] - 2.0 * call[0] * call[1] * amount[2]))


@lru_cache(maxsize=1 << 14)
def _summed(shapes: str, flops: float) -> float:
    """Length of the summed axes of a product: the largest that the sizes of its operands allow for its flops; 0 for
    none."""
    *operands, result = [tuple(s) for s in json.loads(shapes)] or [()]
    rows, columns = max(1, math.prod(result[:-1])), max(1, (result or (1,))[-1])
    most = flops / (2.0 * rows * columns) * (1 + 1e-9)
    sizes = (d for s in operands for d in (*s, math.prod(s) // columns, math.prod(s) // rows))
    return float(max((d for d in sizes if 1 < d <= most), default=0))


@lru_cache(maxsize=1 << 14)
def _call(shapes: str, strides: str, dtypes: str) -> Row:
    """Rows and columns of the (last) result, elements of the largest operand, longest axis, bytes of all; then number
    of operands, largest and smallest item size, rank, and `_layouts`."""
    found = [tuple(s) for s in json.loads(shapes)] or [()]
    sizes = [itemsize(t) for t in json.loads(dtypes)] or [4]
    result, operands = found[-1] or (1,), found[:-1] or found
    layouts = _layouts(found, [tuple(s) for s in json.loads(strides)], sizes)
    return np.array([
        math.prod(result[:-1]), result[-1], max(map(math.prod, operands)), max(max(s, default=1) for s in operands),
        sum(math.prod(s) * size for s, size in zip(found, sizes)), len(found), max(sizes), min(sizes), len(result), *layouts,
    ], dtype=np.float64)  # fmt: skip


def _layouts(
    shapes: Sequence[tuple[int, ...]], strides: Sequence[tuple[int, ...]], sizes: Sequence[int]
) -> list[float]:
    """Of the large operands: share of bytes whose innermost axis is another one than the result's, number with the
    result's rows innermost, number, log of the shortest contiguous run, share of bytes without one; number of small
    operands; the result's innermost axis and log of its size; number of memory orders and of strided ones of all."""
    every = list(zip(shapes, strides, sizes))
    orders = {(len(s), _order(s, t)) for s, t, _ in every if sum(d > 1 for d in s) > 1}
    strided = sum(_innermost(s, t)[2] != 1 for s, t, _ in every if sum(d > 1 for d in s) > 1)
    amounts = [math.prod(s) * size for s, _, size in every]
    axis, run, _ = _innermost(*every[-1][:2]) if every else (1, 1, 1)
    large = [(s, t, amount) for (s, t, _), amount in zip(every[:-1], amounts) if amount * SMALL >= max(amounts)]
    inner = [(*_innermost(s, t), amount) for s, t, amount in large]
    total = max(1.0, float(sum(amounts)))
    result = shapes[-1] if shapes else ()
    across = len(result) > 1 and result[-2] != result[-1]
    return [
        sum(amount for a, _, _, amount in inner if a != axis) / total,
        float(sum(across and size == result[-2] for _, size, _, _ in inner)), float(len(large)),
        math.log2(min((size if step == 1 else 1 for _, size, step, _ in inner), default=1 << 20)),
        sum(amount for _, _, step, amount in inner if step != 1) / total, float(len(every) - 1 - len(large)),
        float(axis), math.log2(max(1, run)), float(len(orders)), float(strided),
    ]  # fmt: skip


def _order(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(n for _, n in sorted((abs(step), n) for n, (size, step) in enumerate(zip(shape, strides)) if size > 1))


def _innermost(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, int, int]:
    """(axis of the smallest stride, counted from the right; size of that axis; its stride)."""
    axes = [(abs(step), -n) for n, (size, step) in enumerate(zip(shape, strides)) if size > 1]
    if not axes:
        return 0, 1, 1
    step, n = min(axes)
    return len(shape) + n, shape[-n], step


# ---------------------------------------------------------------- of the schedule
def _tiles(call: Array, known: Mapping[str, Array], amount: Array, machine: Array) -> Array:
    """Tile, threads, blocks per multiprocessor, share of the last wave, padding, shared memory, occupancy, waves, and
    times relative to the roofline: of the tiles' loads and arithmetic, and of elementwise operations that each column
    of tiles repeats; all 0 without a schedule."""
    (flops, size_bytes, _), (itemsizes, traffic, peak, near, units, _), k = amount, machine, known

    def one(*names: str) -> Array:
        """Product of parameters, absent ones counting as 1."""
        return np.asarray(np.prod([np.maximum(1.0, k[name]) for name in names], axis=0))

    rows, columns, depth = call[0], call[1], _depth(call, flops)
    tile_rows, tile_columns = one("m", "tm", "um", "vm"), one("n", "tn", "un", "vn")
    tile_depth = one("k0", "t0", "u0", "v0") * np.where(k["k0"] > 0, 1.0, one("deep"))
    lanes = np.where(k["warps"] > 0, WARP * k["warps"], np.where(k["threads"] > 0, k["threads"], one("tm", "tn", "t0")))
    split = one("split", "parts")
    down, across = np.ceil(rows / tile_rows), np.ceil(columns / tile_columns)
    blocks = down * across * split
    per_unit = blocks / units
    shared = np.where(
        k["tm"] + k["tn"] + k["t0"] > 0, 0.0, (tile_rows + tile_columns) * tile_depth * one("stages") * itemsizes
    )
    resident = np.minimum(RESIDENT_THREADS // np.maximum(WARP, lanes), SHARED_BYTES // np.maximum(1.0, shared))
    resident = np.clip(resident, 1.0, 32.0)
    roofline = 1e-6 + np.maximum(size_bytes / traffic, flops / peak) + rates.GPU.launch_us
    loads = blocks * (tile_rows + tile_columns) * depth * itemsizes / split / near
    arithmetic = np.ceil(per_unit) * tile_rows * tile_columns * 2.0 * depth / split / (peak / units)
    repeated = _elementwise(call, amount) * across / ELEMENTWISE_RATE
    waves = np.ceil(per_unit / resident)
    logs = (repeated / roofline, tile_rows, tile_columns, tile_depth, lanes, tile_rows * tile_columns / lanes, blocks, per_unit,
            down * tile_rows * across * tile_columns / np.maximum(1.0, rows * columns), shared, per_unit / resident,
            loads * near / np.maximum(1.0, size_bytes), depth / tile_depth / split, loads / roofline,
            arithmetic / roofline, np.maximum(loads, arithmetic) / roofline, waves)  # fmt: skip
    found = np.stack([*map(_log, logs), per_unit / np.ceil(per_unit), resident, per_unit / resident / waves])
    return np.where(_is_tiled(known), found, 0.0)


def _is_tiled(known: Mapping[str, Array]) -> Array:
    return np.asarray(known["m"] + known["n"] + known["tm"] + known["tn"] + known["t0"] > 0)


@lru_cache(maxsize=1 << 14)
def _parameters(schedule: str) -> Row:
    known = schedule_of(schedule)
    return np.array([float(known.get(name, 0)) for name in PARAMETERS])


@lru_cache(maxsize=1 << 14)
def _scheduled(schedule: str) -> Row:
    """Logarithms of some parameters, and flags."""
    known = schedule_of(schedule)
    logs = [math.log2(known[n]) if known.get(n, 0) > 0 else -1.0 for n in _LOGGED]
    return np.array([*logs, *(float(name in known) for name in FLAGS)])


_LOGGED = ("stages", "split", "k1", "ahead", "group", "v0", "u0", "um", "tn", "t0", "vn", "tm")


@lru_cache(maxsize=1 << 14)
def schedule_of(text: str) -> Mapping[str, int]:
    """The schedule that a table column holds as JSON text; empty for other text."""
    try:
        found = dict(json.loads(text)) if text else {}
    except (ValueError, TypeError):
        return {}
    return found if all(type(v) is int and 0 <= v < 1 << 31 for v in found.values()) else {}


# ---------------------------------------------------------------- of the kernel and the machine
@lru_cache(maxsize=1 << 12)
def _label(name: str, backend: str, family: str, kind: str) -> Row:
    """Hash bits (+1 or -1) of the name, and of the backend and family; whether the result is transposed or
    channels-last; the family as one-hot.
    """
    weight = NAME_WEIGHTS.get(kind, 0.0)
    own = [weight * sign for text in (name, f"{backend} {family}") for sign in _signs(text)]
    return np.array([*own, float("_columns" in name), float("_last" in name), *(float(family == f) for f in FAMILIES)])


def _signs(text: str) -> list[float]:
    digest = int.from_bytes(blake2b(text.encode(), digest_size=NAME_BITS // 8).digest(), "big")
    return [1.0 if digest >> bit & 1 else -1.0 for bit in range(NAME_BITS)]


@lru_cache(maxsize=1 << 10)
def _machine(device: str, dtypes: str) -> Row:
    """Item size of the first operand, stated rates in bytes and flops per µs and in bytes per µs from cache, number of
    multiprocessors or cores, and bytes of cache."""
    known = rates.HOST if device.startswith("cpu") else rates.GPU
    dtype = next(iter(json.loads(dtypes)), "float32")
    units = re.search(r"(?:multiprocessors|threads)=(\d+)", device)
    return np.array([
        itemsize(dtype), known.bytes_per_us, known.flops_per_us * known.dtype_factors.get(dtype, 1.0),
        known.cache_bytes_per_us, max(1.0, float(units[1])) if units else 1.0, known.cache_bytes,
    ])  # fmt: skip


def _log(values: Array) -> Array:
    return np.asarray(np.where(values > 0, np.log2(np.maximum(values, 1e-12)), -1.0))


def _emphasis() -> Array:
    """Weight of each feature in distances: 0 for the hash bits of `_label`, SCHEDULE_EMPHASIS for the schedule's, else
    1; times ELEMENTWISE_EMPHASIS for elementwise operations, the first features of `_sizes` and of `_tiles`.
    """
    none = np.ones((9, 1))
    sizes = len(_sizes(np.ones((len(_call("[[1]]", "[[1]]", '["float32"]')), 1)), none[:3], none[:6]))
    tiles = len(_tiles(np.ones((2, 1)), dict.fromkeys(PARAMETERS, none[0]), none[:3], none[:6]))
    label = len(_label("", "", "", ""))
    schedule, signs = [SCHEDULE_EMPHASIS] * (tiles + len(_scheduled(""))), [0.0] * 2 * NAME_BITS
    found = np.array([1.0] * sizes + schedule + signs + [1.0] * (label - len(signs)))
    found[[0, sizes]] *= ELEMENTWISE_EMPHASIS
    return found


SCHEDULE_EMPHASIS, ELEMENTWISE_EMPHASIS = 1.5, 3.0
EMPHASIS = _emphasis()
#: Number of features.
COUNT = len(EMPHASIS)

__all__ = ["COUNT", "EMPHASIS", "features", "schedule_of"]
