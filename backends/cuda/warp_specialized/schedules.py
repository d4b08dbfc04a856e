"""Candidate schedules of warp-specialized GEMM (warp_specialized/kernel.py) by a cost model, and their legality.

`roles` is 1. `m`, `n`: tile shape (`n` per right-hand matrix); `stages`: pipeline depth; `group`: rows of tiles
rasterized together. `turns`: 2 for ping-pong consumers, 1 for cooperative ones. `down`, `across`: cluster size along M
and N, at most one of them 2 (TMA multicast). `parts`: split-K factor within a cluster. `early`: programmatic dependent
launch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice, product
from math import ceil, prod

from ...ir.kernel import PROBE, Kernel, if_fusable
from ...ir.tiling import Shape
from ...machine import per_machine, target
from .device_library import COLUMNS, GROUP, PIECE
from .kernel import DEPTH, Roles, emit_roles, readable

ROWS, COLUMNS_ = 17, 64  # least rows and columns of a GEMM that is worth warp specialization
MOST_PARTS = 8  # largest portable cluster size
CLUSTERED = 120  # SMs that clusters of more than two blocks can occupy
HELD, HELD_TOGETHER = 192, 128  # limits of accumulators per thread: ping-pong, cooperative (256 x 192 took 1/5 longer)
NAMES = {"roles", "m", "n", "stages", "turns", "down", "across", "parts", "group"}
PLAIN = dict.fromkeys(NAMES, 1) | {"m": 64, "n": 64, "stages": 2, "turns": 2}  # legal if any schedule is
FORMS = (*product((1, 2), ((1, 1), (2, 1), (1, 2)), (1,)), *((1, (1, 1), parts) for parts in (2, 3, 4, 6, 8)))
# Constants for ranking only, fitted to times of 76 products in up to 72 schedules each on an H200: of the schedules
# timed, the first guess took 4 % longer than the best one in the mean, the best of three 0.6 %, the best of eight 0.1
# %.
RATE = 4096  # multiply-add flops of an SM per cycle
NARROW = 32  # fixed cost of a wgmma instruction in columns
BYTES = 74  # bytes of tiles that reach an SM per cycle; multicast bytes reach both SMs
PAIRS, LONG_PAIRS = 1.09, 0.99  # slowdown of clusters of two in general, and where K is at least
LONG = 2048  # this long and blocks have several tiles: multicast then saves power
SMALL, ODD = 1.03, 1.07  # slowdown of tiles of 64 rows, and of columns that are no multiple of 64
BEGIN, END = 3000, 8  # cycles before the first product; epilogue cycles per pair of results of a thread
SENT = 18  # bytes of partial sums that a block receives per cycle
SHORT = 50_000  # cycles below which early launch is worth measuring


def role_schedules(kernel: Kernel, shape: Shape, count: int) -> list[dict[str, int]]:
    """At most `count` schedules, best guess first; empty if warp specialization does not apply to the kernel."""
    if shape.kind != "contraction" or shape.m < ROWS or shape.n < COLUMNS_:
        return []
    if not _written(kernel, shape, PLAIN):  # tile sizes affect the operand loads only, not the epilogue
        return []
    rights = len({d.right for d in shape.dots.values()})
    batch, size = prod(a.size for a in shape.batch), max(a.size for a in shape.inner)
    found = _ranked(shape.m, shape.n, size, batch, rights)
    fitting = (pair for pair in found if _legal(shape, pair[1]) and readable(kernel, shape, Roles.of(pair[1])))
    chosen = list(islice(fitting, count))
    early = [schedule | {"early": 1} for cycles, schedule in chosen if cycles < SHORT]
    plain = [schedule for _, schedule in chosen]
    return [*plain[:1], *early[: count - count // 2], *plain[1:]][:count]


def roles_fit(kernel: Kernel, shape: Shape, schedule: Mapping[str, int]) -> bool:
    """Whether a schedule is legal: registers and shared memory suffice, and the kernel can be emitted."""
    return _legal(shape, schedule) and _written(kernel, shape, schedule)


def _legal(shape: Shape, schedule: Mapping[str, int]) -> bool:
    """Whether a schedule's numbers are in range and its accumulators fit registers."""
    sizes = {k: v for k, v in schedule.items() if k in ("m", "group")}
    if (
        not NAMES <= set(schedule) <= NAMES | {"early"}
        or schedule["roles"] != 1
        or any(v < 1 or v & (v - 1) for v in sizes.values())
        or schedule["n"] not in COLUMNS
        or max(schedule["turns"], schedule["down"] * schedule["across"]) > 2
        or not 1 <= schedule["parts"] <= MOST_PARTS
        or not 64 <= schedule["m"] <= 256
        or not 2 <= schedule["stages"] <= 8
    ):
        return False
    rights = len({d.right for d in shape.dots.values()})
    return Roles.of(schedule).held(rights) <= HELD


def _written(kernel: Kernel, shape: Shape, schedule: Mapping[str, int]) -> bool:
    """Whether the kernel can be emitted with a schedule."""
    return if_fusable(emit_roles, kernel, shape, Roles.of(schedule), PROBE) is not None


@per_machine(1024)
def _ranked(rows: int, columns: int, size: int, batch: int, rights: int) -> tuple[tuple[float, dict[str, int]], ...]:
    """(estimated cycles, schedule), best first: the larger of math and memory time of the mainloop, plus prologue and
    epilogue."""
    found = _estimates(rows, columns, size, batch, rights)
    return tuple(sorted(found, key=lambda pair: (pair[0], sorted(pair[1].items()))))


def _estimates(rows: int, columns: int, size: int, batch: int, rights: int) -> Iterator[tuple[float, dict[str, int]]]:
    """(estimated cycles, schedule) of every candidate."""
    depth = ceil(size / DEPTH)
    for m, n, (turns, (down, across), parts) in product((64, 128, 256), COLUMNS, FORMS):
        r = Roles(m, n, 4, turns, down, across, parts)
        tiles_m, tiles_n = ceil(rows / m), ceil(columns / n)
        programs = tiles_m * tiles_n * batch * parts
        if (
            r.height % GROUP
            or r.held(rights) > (HELD if turns == 2 else HELD_TOGETHER)
            or (parts > 1 and (programs > (target().multiprocessors if parts == 2 else CLUSTERED) or depth < 2 * parts))
            or tiles_m % down
            or tiles_n % across
            or (m > GROUP and rows <= GROUP)
        ):
            continue
        fits = (s for s in (8, 6, 5, 4, 3) if replace(r, stages=s).waiting(rights) >= (2 if s > 4 else 1))
        stages = next(fits, 0)
        if not stages or r.joining(rights) > stages * r.stage(rights):
            continue
        rounds = ceil(programs / target().multiprocessors)
        wide = rights * -(-n // PIECE) * PIECE  # right-hand columns are loaded 64 at a time
        brought = (m + wide) * 2 * DEPTH / BYTES
        multiplied = 2 * m * n * rights * DEPTH / RATE * (1 + NARROW / r.taken(rights))
        pairs = 1.0 if down * across == 1 else LONG_PAIRS if size >= LONG and rounds > 1 else PAIRS
        times = pairs * (SMALL if m == GROUP else 1.0) * (ODD if n % PIECE else 1.0)
        behind = END * r.held(rights) / 2 / parts * (1 if turns == 2 else rounds) + r.joining(rights) / SENT
        cycles = BEGIN + rounds * ceil(depth / parts) * max(brought, multiplied) * times + behind
        schedule = {"roles": 1, "m": m, "n": n, "stages": stages, "turns": turns, "down": down, "across": across}
        yield cycles, schedule | {"parts": parts, "group": 4 if rounds > 4 and size >= LONG else 8}


__all__ = ["role_schedules", "roles_fit"]
