"""Schedules of attention whose warps have roles (gluon_source.py): those worth measuring, and which are legal.

`roles` is 1, `warps` those that compute: four for each 64 rows of a program. `stages` are the tiles of keys, and of values, that
can lie in shared memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product

from .gluon_source import GROUP, WIDEST, emit_roles
from .kir import Kernel, Unfusable
from .tiling import Shape, padded
from .triton_fits import SHARED, Schedule
from .triton_space import tiling_of

SCORES = 128  # keys of a tile that a thread's registers have room for, beside as many columns of the result
LONG = 512  # keys below which a program has no time to overlap anything


def role_schedules(kernel: Kernel, shape: Shape) -> Iterator[Schedule]:
    """Schedules worth measuring, the best guess first: large tiles of keys, as many stages as there is room for."""
    if shape.kind != "attention" or not shape.rows or shape.n > WIDEST:
        return
    main = max(shape.outer, key=lambda a: a.size)
    inner = {f"k{i}": padded(a.size) for i, a in enumerate(shape.inner)}
    if main.size < LONG:
        return
    own = f"k{shape.inner.index(main)}"
    for keys, groups in product((128, 64), (2,)):
        for stages in (4, 3, 2):
            schedule = {
                "m": groups * GROUP, "n": padded(shape.n), "warps": 4 * groups, "stages": stages, "roles": 1, **inner, own: keys,
            }  # fmt: skip
            if roles_fit(kernel, shape, schedule):
                yield schedule
                break


def roles_fit(kernel: Kernel, shape: Shape, schedule: Mapping[str, int]) -> bool:
    """Whether a schedule of roles is legal."""
    wanted = {"m", "n", "warps", "stages", "roles", *(f"k{i}" for i in range(len(shape.inner)))}
    if (
        set(schedule) != wanted
        or schedule["roles"] != 1
        or schedule["warps"] not in (4, 8, 12)
        or shape.kind != "attention"
    ):
        return False
    tiling = tiling_of(shape, schedule)
    keys = max((k for a, k in tiling.k.items() if k < a.size), default=0)
    width = max((k for a, k in tiling.k.items() if k >= a.size), default=0)
    if (
        not 16 <= keys <= SCORES
        or not 2 <= schedule["stages"] <= 8
        or not 16 <= width <= WIDEST
        or tiling.n + keys > WIDEST
    ):
        return False
    if 2 * (tiling.m * (width + 2 * tiling.n) + schedule["stages"] * keys * (width + tiling.n)) > SHARED:
        return False
    try:
        emit_roles(kernel, tiling, "probe", shape)
    except Unfusable:
        return False
    return True
