"""Which schedules of a generated kernel are legal for Triton: tiles within the axes, in registers and in shared memory.

`triton_space` proposes those worth a try and ranks them; a search may go on to any other that fits (schedule_search.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod

from .index import Axis
from .kir import Kernel
from .tiling import Shape, padded
from .triton_space import SHARED, TILE, WHOLE, _accumulators, _boxes, _inner, _single, _splits, _staged

Numbers = Mapping[str, int]

WARPS, STAGES = 16, 8  # most of a program
EACH = 256  # most elements of an accumulator that a thread holds


def fits(kernel: Kernel, shape: Shape, schedule: Numbers, splits: bool = True) -> bool:
    """Whether a schedule is legal. `splits`: whether the longest reduction can be cut into parts."""
    wanted = {"m", "n", "warps", "stages", *(f"k{i}" for i in range(len(shape.inner)))}
    if not wanted <= set(schedule) <= wanted | {"group", "split", "join", "precision", "boxes"}:
        return False
    if "boxes" in schedule and (shape.kind not in ("contraction", "attention") or shape.m <= 16 or not _boxes(kernel)):
        return False
    sizes = [v for name, v in schedule.items() if name not in ("stages", "split", "join", "precision", "boxes")]
    if any(v < 1 or v & (v - 1) for v in sizes) or not 1 <= schedule["stages"] <= STAGES or schedule["warps"] > WARPS:
        return False
    parts = schedule.get("split", 1)
    if (parts > 1 and not splits) or ("join" in schedule and parts == 1):
        return False
    return _KINDS[shape.kind](kernel, shape, schedule)


def _within(value: int, size: int, least: int = 1) -> bool:
    """Whether a tile size is at least `least`, and no larger than what holds the whole axis."""
    return least <= value <= max(padded(size), least)


def _each(elements: float, schedule: Numbers) -> float:
    """Elements of a thread."""
    return elements / (32 * schedule["warps"])


def _pointwise(kernel: Kernel, shape: Shape, s: Numbers) -> bool:
    fine = _within(s["n"], shape.n, 32) and (_within(s["m"], shape.m) if shape.rows else s["m"] == 1)
    alone = set(s) == {"m", "n", "warps", "stages"} and s["stages"] == 1
    size = s["m"] * s["n"]
    return fine and alone and (256 <= size <= TILE // 2 or (s["n"] >= shape.n and s["m"] >= shape.m and size < 256)) \
        and _each(size, s) <= 64  # fmt: skip


def _windows(kernel: Kernel, shape: Shape, s: Numbers) -> bool:
    ones = all(v == 1 for name, v in s.items() if name[0] == "k" or name in ("n", "stages"))
    return ones and not {"split", "group"} & set(s) and _within(s["m"], shape.m, 64) \
        and (1 <= _each(s["m"], s) <= 32 or s["m"] >= shape.m)  # fmt: skip


def _rows(kernel: Kernel, shape: Shape, s: Numbers) -> bool:
    length = max((a.size for a in shape.inner), default=1)
    depths = {v for name, v in s.items() if name[0] == "k"}
    if len(depths) > 1 or "group" in s or s["stages"] != 2:
        return False
    k = depths.pop() if depths else 1
    n = min(k, padded(shape.n)) if shape.cols else 1
    if s["n"] != n or not _within(k, length) or (k >= length and k > WHOLE):
        return False
    parts = s.get("split", 1)
    whole = k >= padded(length)
    cut = parts == 1 or (not shape.cols and not whole and parts in _splits(length, -(-shape.m // s["m"]), shape))
    each = _each(s["m"] * k, s)
    rows = _within(s["m"], shape.m) if shape.rows else s["m"] == 1
    return cut and rows and s["m"] * k <= TILE and (1 <= each <= 128 or (each < 1 and s["warps"] == 1)) \
        and (whole or s["m"] * k >= 256)  # fmt: skip


def _main(shape: Shape) -> Axis:
    """The longest axis that products are summed over, outside all other reductions."""
    axes = [a for a in shape.outer if any(e.axis == a for e in shape.dots)]
    return max(axes, key=lambda a: a.size, default=shape.inner[-1])


def _contraction(kernel: Kernel, shape: Shape, s: Numbers) -> bool:
    main = _main(shape)
    k = s[f"k{shape.inner.index(main)}"]
    if _inner(shape, main, k).items() - s.items() or (s.get("split", 1) > 1 and not s.get("join")):
        return False
    width, sums, few = 4 if _single(kernel) else 2, _accumulators(shape), shape.m <= 32
    programs = -(-shape.m // s["m"]) * -(-shape.n // s["n"]) * prod(a.size for a in shape.batch)
    parts = s.get("split", 1)
    if parts > 1 and (parts not in _splits(main.size, programs, shape) or main.size // parts < k):
        return False
    if not _within(k, main.size, 16 if shape.rows else 1):
        return False
    if not shape.rows:  # a vector and a matrix: no product for the matrix unit
        return s["m"] == 1 and s["stages"] == 3 and "group" not in s and _within(s["n"], shape.n, 4) \
            and 4 <= _each(s["n"] * k * sums, s) <= 128  # fmt: skip
    shared = s["stages"] * ((s["m"] * k + k * s["n"] * sums) * width if few else _staged(kernel, shape, dict(s)))
    size = s["m"] * s["n"] * sums
    if few and (s["m"] != padded(max(shape.m, 16)) or "group" in s or s["n"] * k * sums > TILE):
        return False
    tiles = _within(s["m"], shape.m, 16) and _within(s["n"], shape.n, 16) and s["n"] <= 256 and s.get("group", 1) <= 32
    return tiles and shared <= SHARED and size <= (TILE if width == 4 else 2 * TILE) and _each(size, s) <= EACH \
        and 2 <= s["warps"] <= 8  # fmt: skip


def _attention(kernel: Kernel, shape: Shape, s: Numbers) -> bool:
    main = _main(shape)
    k = s[f"k{shape.inner.index(main)}"]
    rest = {f"k{i}": max(16, padded(a.size)) for i, a in enumerate(shape.inner) if a != main}
    n = max(16, padded(shape.n)) if shape.n <= 512 else 128
    if rest.items() - s.items() or s["n"] != n or "group" in s or not _within(k, main.size, 16) or k > 256:
        return False
    if not (_within(s["m"], shape.m, 16) if shape.rows else s["m"] == 1):
        return False
    programs = -(-shape.m // s["m"]) * -(-shape.n // n) * prod(a.size for a in shape.batch)
    parts = s.get("split", 1)
    if parts > 1 and (parts not in _splits(main.size, programs, shape) or main.size // parts < k):
        return False
    shared = (s["m"] * max([n, *rest.values()]) + s["stages"] * 2 * k * max([n, *rest.values()])) * (
        4 if _single(kernel) else 2
    )
    return shared <= SHARED and _each(s["m"] * n, s) <= 128 and 2 <= s["warps"] <= 8


_KINDS: dict[str, Callable[[Kernel, Shape, Numbers], bool]] = {
    "pointwise": _pointwise, "rows": _rows, "windows": _windows, "contraction": _contraction, "attention": _attention,
}  # fmt: skip
