"""Lists candidate schedules (tuning parameters) of warp-specialized GEMM, ranked by a cost model, and decides whether
one is legal.

The schedule class is `GemmSchedule` in warp_specialized/parameters.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, product
from math import ceil, prod

from ...ir.kernel import PROBE, Kernel
from ...ir.tiling import Shape
from ...ir.unfusable import if_fusable
from ...machine import cached_per_machine, target
from .device_library import COLUMNS, GROUP, PIECE
from .frame import GemmFrame
from .kernel import emit_gemm, readable
from .parameters import DEPTH, GemmSchedule

ROWS, COLUMNS_ = 17, 64  # least rows and columns of a GEMM that is worth warp specialization
CLUSTERED = 120  # SMs that clusters of more than two blocks can occupy
MAX_ACCUMULATORS_PING_PONG = 192  # per thread
MAX_ACCUMULATORS_COOPERATIVE = 128  # per thread (256 x 192 took 1/5 longer)
PLAIN = GemmSchedule(64, 64, 2, 2, group=1)  # legal if any schedule is
FORMS = (*product((1, 2), ((1, 1), (2, 1), (1, 2)), (1,)), *((1, (1, 1), parts) for parts in (2, 3, 4, 6, 8)))
# Constants for ranking only, fitted to times of 76 products in up to 72 schedules each on an H200: of the schedules
# timed, the first guess took 4 % longer than the best one in the mean, the best of three 0.6 %, the best of eight 0.1
# %.
RATE = 4096  # multiply-add flops of an SM per cycle
NARROW = 32  # fixed cost of a wgmma instruction in columns
BYTES = 74  # bytes of tiles that reach an SM per cycle; multicast bytes reach both SMs
PAIRS, LONG_PAIRS = 1.09, 0.99  # slowdown of clusters of two in general, and where K is at least
LONG = 2048  # K from which LONG_PAIRS applies if blocks have several tiles: multicast then saves power
SMALL, ODD = 1.03, 1.07  # slowdown of tiles of 64 rows, and of columns that are no multiple of 64
BEGIN, END = 3000, 8  # cycles before the first product; epilogue cycles per pair of results of a thread
SENT = 18  # bytes of partial sums that a block receives per cycle
SHORT = 50_000  # cycles below which early launch is worth measuring


def applies(kernel: Kernel, shape: Shape) -> bool:
    """Whether warp specialization is offered for `kernel`, whose axes have the roles `shape` (row, column, batch,
    reduction): a GEMM with at least `ROWS` rows and `COLUMNS_` columns. Dtypes are checked later."""
    return shape.kind == "contraction" and shape.m >= ROWS and shape.n >= COLUMNS_


def gemm_schedules(kernel: Kernel, shape: Shape, count: int) -> list[GemmSchedule]:
    """At most `count` schedules, best guess first; empty for kernels that a warp-specialized GEMM cannot compute."""
    if not applies(kernel, shape) or not _written(kernel, shape, PLAIN):
        return []  # tile sizes affect the operand loads only, not the epilogue
    rights = len({d.right for d in shape.dots.values()})
    batch, size = prod(a.size for a in shape.batch), max(a.size for a in shape.inner)
    found = _ranked(shape.m, shape.n, size, batch, rights)
    frame = GemmFrame(kernel, shape, PLAIN, PROBE)
    fitting = (pair for pair in found if _legal(shape, pair[1]) and readable(frame, pair[1]))
    chosen = list(islice(fitting, count))
    early = [schedule.but(early=True) for cycles, schedule in chosen if cycles < SHORT]
    plain = [schedule for _, schedule in chosen]
    return [*plain[:1], *early[: count - count // 2], *plain[1:]][:count]


def gemm_fits(kernel: Kernel, shape: Shape, schedule: GemmSchedule) -> bool:
    """Whether `schedule` is legal for `kernel`: registers and shared memory suffice, and the kernel can be emitted."""
    return _legal(shape, schedule) and _written(kernel, shape, schedule)


def _legal(shape: Shape, s: GemmSchedule) -> bool:
    """Whether a schedule's numbers are in range and its accumulators fit registers."""
    rights = len({d.right for d in shape.dots.values()})
    return s.valid and s.down * s.across <= 2 and s.held(rights) <= MAX_ACCUMULATORS_PING_PONG


def _written(kernel: Kernel, shape: Shape, schedule: GemmSchedule) -> bool:
    """Whether the kernel can be emitted with a schedule."""
    return if_fusable(emit_gemm, kernel, shape, schedule, PROBE) is not None


@cached_per_machine(1024)
def _ranked(rows: int, columns: int, size: int, batch: int, rights: int) -> tuple[tuple[float, GemmSchedule], ...]:
    """(estimated cycles, schedule), best first.

    The larger of math and memory time of the mainloop, plus prologue and epilogue.
    """
    found = _estimates(rows, columns, size, batch, rights)
    return tuple(sorted(found, key=lambda pair: (pair[0], pair[1].key)))


def _estimates(rows: int, columns: int, size: int, batch: int, rights: int) -> Iterator[tuple[float, GemmSchedule]]:
    """(estimated cycles, schedule) of every candidate."""
    depth = ceil(size / DEPTH)
    for m, n, (turns, (down, across), parts) in product((64, 128, 256), COLUMNS, FORMS):
        r = GemmSchedule(m, n, 4, turns, down, across, parts)
        tiles_m, tiles_n = ceil(rows / m), ceil(columns / n)
        programs = tiles_m * tiles_n * batch * parts
        if (
            r.height % GROUP
            or r.held(rights) > (MAX_ACCUMULATORS_PING_PONG if turns == 2 else MAX_ACCUMULATORS_COOPERATIVE)
            or (parts > 1 and (programs > (target().multiprocessors if parts == 2 else CLUSTERED) or depth < 2 * parts))
            or tiles_m % down
            or tiles_n % across
            or (m > GROUP and rows <= GROUP)
        ):
            continue
        fits = (s for s in (8, 6, 5, 4, 3) if r.but(stages=s).store_buffers(rights) >= (2 if s > 4 else 1))
        stages = next(fits, 0)
        if not stages or r.joining(rights) > stages * r.stage(rights):
            continue
        rounds = ceil(programs / target().multiprocessors)
        wide = rights * -(-n // PIECE) * PIECE  # right-hand columns are loaded 64 at a time
        brought = (m + wide) * 2 * DEPTH / BYTES
        multiplied = 2 * m * n * rights * DEPTH / RATE * (1 + NARROW / r.instruction_columns(rights))
        pairs = 1.0 if down * across == 1 else LONG_PAIRS if size >= LONG and rounds > 1 else PAIRS
        times = pairs * (SMALL if m == GROUP else 1.0) * (ODD if n % PIECE else 1.0)
        behind = END * r.held(rights) / 2 / parts * (1 if turns == 2 else rounds) + r.joining(rights) / SENT
        cycles = BEGIN + rounds * ceil(depth / parts) * max(brought, multiplied) * times + behind
        yield cycles, r.but(stages=stages, group=4 if rounds > 4 and size >= LONG else 8)


__all__ = ["applies", "gemm_fits", "gemm_schedules"]
