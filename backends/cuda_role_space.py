"""Schedules of products of large matrices whose warps have roles (cuda_roles.py): those worth measuring, and which are legal.

`roles` is 1. `m` rows and `n` columns of a tile (of each of several matrices), `stages` of the ring, `group` rows of tiles that are
taken together. `turns` is 2 where the two groups of warps take tiles in turns; of a cluster's two blocks, `down` or `across` is
2 where they lie below or beside each other. `early` lets the kernel start before the one before it has ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from math import ceil, prod

from .cuda_role_library import COLUMNS, GROUP, PIECE
from .cuda_roles import Roles, emit_roles
from .kir import Kernel, Unfusable
from .tiling import MULTIPROCESSORS, Shape

LEAST = 128  # rows and columns of a product that roles are worth measuring for
HELD, HELD_TOGETHER = 192, 128  # sums of a thread; where both groups have a tile: 256 x 192 took a fifth longer
NAMES = {"roles", "m", "n", "stages", "turns", "down", "across", "group"}
RATE = 4096  # operations of a multiprocessor in a cycle, for ranking only
BYTES = 70  # of tiles that reach a multiprocessor in a cycle, for ranking only
LONG = 2048  # elements of a sum over which it pays that two blocks wait for each other
BEGIN, END = 3000, 24  # cycles before the first product; for each pair of results of a thread behind the last one


def role_schedules(kernel: Kernel, shape: Shape, count: int) -> list[dict[str, int]]:
    """At most `count` schedules, the best guess first; none where roles are not for this kernel."""
    if shape.kind != "contraction" or shape.m < LEAST or shape.n < LEAST:
        return []
    found = sorted(_ranked(shape), key=lambda pair: (pair[0], sorted(pair[1].items())))
    chosen: list[dict[str, int]] = []
    for _, schedule in found:
        if len(chosen) < count and roles_fit(kernel, shape, schedule):
            chosen.append(schedule)
        elif not chosen and not _readable(kernel, shape, schedule):
            return []
    return chosen


def roles_fit(kernel: Kernel, shape: Shape, schedule: Mapping[str, int]) -> bool:
    """Whether a schedule of roles is legal: its tiles fit into registers and shared memory, and can be written."""
    sizes = {k: v for k, v in schedule.items() if k in ("m", "group")}
    if (
        not NAMES <= set(schedule) <= NAMES | {"early"}
        or schedule["roles"] != 1
        or any(v < 1 or v & (v - 1) for v in sizes.values())
        or schedule["n"] not in COLUMNS
        or max(schedule["turns"], schedule["down"] * schedule["across"]) > 2
        or not 64 <= schedule["m"] <= 256
        or not 2 <= schedule["stages"] <= 8
    ):
        return False
    rights = len({d.right for d in shape.dots.values()})
    return Roles.of(schedule).held(rights) <= HELD and _readable(kernel, shape, schedule)


def _readable(kernel: Kernel, shape: Shape, schedule: Mapping[str, int]) -> bool:
    try:
        emit_roles(kernel, shape, Roles.of(schedule), "probe")
    except Unfusable:
        return False
    return True


def _ranked(shape: Shape) -> Iterator[tuple[float, dict[str, int]]]:
    """(an estimate of the cycles, schedule): what is multiplied or brought, and what lies before and behind it."""
    rights = len({d.right for d in shape.dots.values()})
    size = max(a.size for a in shape.inner)
    batch = prod(a.size for a in shape.batch)
    for m, n, turns, (down, across) in product((64, 128, 256), COLUMNS, (1, 2), ((1, 1), (2, 1), (1, 2))):
        tiles_m, tiles_n = ceil(shape.m / m), ceil(shape.n / n)
        programs, height = tiles_m * tiles_n * batch, m if turns == 2 else m // 2
        most = HELD if turns == 2 else HELD_TOGETHER
        if (
            height % GROUP
            or rights * height * n // 128 > most
            or tiles_m % down
            or tiles_n % across
            or n * rights < LEAST
        ):
            continue
        stage = Roles(m, n, 4).stage(rights)
        stages = next((s for s in (5, 4, 3) if Roles(m, n, s, turns).waiting(rights) >= (2 if s > 4 else 1)), 0)
        if not stages or (turns == 2 and programs <= MULTIPROCESSORS):
            continue
        rounds = ceil(programs / MULTIPROCESSORS)
        wide = rights * -(-n // PIECE) * PIECE  # columns come 64 at a time
        brought = (m / across + wide / down) * 2 * size / BYTES
        multiplied = 2 * m * n * rights * size / RATE
        power = 0.2 * (m + wide) * 2 * size / BYTES  # what is brought costs the clock, too
        pairs = 1.0 if down * across == 1 else (0.98 if size >= LONG and rounds > 1 else 1.04) + 0.01 * (across - 1)
        behind = END * height * n * rights // 256 * (1 if turns == 2 else rounds)
        cycles = (
            (rounds * (max(brought, multiplied) + power) + behind)
            * pairs
            * (1.05 if m == 64 else 1.0)
            * (1.03 if n % PIECE else 1.0)
        )
        cycles += BEGIN + stage / BYTES
        schedule = {"roles": 1, "m": m, "n": n, "stages": stages, "turns": turns, "down": down, "across": across}
        yield cycles, schedule | {"group": 4 if rounds > 4 and size >= LONG else 8}


__all__ = ["role_schedules", "roles_fit"]
