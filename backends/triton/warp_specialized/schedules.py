"""Candidate schedules of warp-specialized Gluon kernels and their legality.

`roles` is 1. `pieces`: whether attention widths are split in two powers of two. `warps`: consumer warps, four per 64
rows of a program. Attention (warp_specialized/attention.py): `stages` is the number of key tiles, and of value tiles, in shared
memory. Convolution (warp_specialized/convolution.py): `tall` positions per program, `wide` filters and `more` in a second tile;
`stages` is the pipeline depth in steps of K.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from math import prod

from ...ir.kernel import PROBE, Kernel, if_fusable
from ...ir.tiling import Shape, padded
from ...machine import target
from ..schedules.candidates import tiling_of
from ..schedules.legality import Schedule
from .attention import emit_roles
from .convolution import DEPTHS, images_of
from .spelling import GROUP
from .tiles import WIDE_RESULT, WIDEST, widths

SCORES = 128  # maximum keys per tile: registers of a thread beside as many result columns
MOST_TURNS = 2  # programs per SM up to which shorter programs are tried as well
KEYS_BESIDE = 64  # maximum keys per tile beside the widest result
LONG = 512  # least keys: shorter loops have nothing to overlap
# filters of a tile, as two powers of two
WIDTHS = ((256, 64), (256, 0), (128, 64), (128, 32), (128, 0), (64, 32), (64, 16), (64, 0))
BEHIND = 34 << 10  # bytes of shared memory to transpose results
MOST_STAGES = 6


def role_schedules(kernel: Kernel, shape: Shape) -> Iterator[Schedule]:
    """Candidate schedules, best guess first: large key tiles, as many stages as fit."""
    if shape.kind == "contraction":
        yield from image_schedules(kernel, shape)
    if shape.kind != "attention" or not shape.rows or shape.n > WIDEST:
        return
    main = max(shape.outer, key=lambda a: a.size)
    inner = {f"k{i}": padded(a.size) for i, a in enumerate(shape.inner)}
    if main.size < LONG or max(a.size for a in shape.rows) < GROUP:
        return
    own = f"k{shape.inner.index(main)}"
    sizes = [shape.n, *(a.size for a in shape.inner if a != main)]
    more = {"pieces": 1} if any(len(widths(size)) > 1 for size in sizes) else {}
    first, second = (64, 32) if padded(shape.n) == WIDEST and not more else (128, 64)
    found = [(first, 2), (second, 2)]
    rows = prod(a.size for a in (*shape.rows, *shape.batch))
    if (
        rows <= MOST_TURNS * target().multiprocessors * 2 * GROUP
    ):  # few programs, and the longest one dominates: also shorter ones
        found.append((first, 1))
    for keys, groups in found:
        for stages in (4, 3, 2):
            schedule = {
                "m": groups * GROUP, "n": padded(shape.n), "warps": 4 * groups, "stages": stages, "roles": 1, **inner, own: keys, **more,
            }  # fmt: skip
            if roles_fit(kernel, shape, schedule):
                yield schedule
                break


def image_schedules(kernel: Kernel, shape: Shape, count: int = 3) -> Iterator[Schedule]:
    """Candidate schedules of a padded convolution, best guess first, ranked by waves of programs and by how often tiles
    are loaded."""
    if shape.kind != "contraction" or len(shape.dots) != 1 or not any(e.op == "load" and e.args for e in kernel.exprs):
        return
    ((product_, dot),) = shape.dots.items()
    rows = any(e.args for e in dot.left if e.op == "load")  # positions are rows, else columns
    m, n = (shape.m, shape.n) if rows else (shape.n, shape.m)
    found: list[tuple[float, Schedule]] = []
    for tall, (wide, more), depth in product((2 * GROUP, GROUP), WIDTHS, DEPTHS):
        across = wide + more
        stages = min(
            MOST_STAGES,
            (target().shared_per_block - BEHIND) // (2 * depth * (tall + across)),
            product_.axis.size // depth,
        )
        if m % tall or n % across or product_.axis.size % depth or stages < 2:
            continue
        waves = -(-(m // tall * (n // across)) // target().multiprocessors)
        rank = waves * tall * across * (0.4 + 40 * (1 / tall + 1 / across)) * (1 + 0.2 * (depth == DEPTHS[1]))
        sides = {"m": tall, "n": across} if rows else {"m": across, "n": tall}
        schedule = {"roles": 1, "tall": tall, "wide": wide, "stages": stages, "k0": depth, "warps": tall // 16, **sides}
        found.append((rank, schedule | ({"more": more} if more else {})))
    kept = 0
    for _, schedule in sorted(found, key=lambda pair: pair[0]):
        if kept < count and images_fit(kernel, shape, schedule):
            kept += 1
            yield schedule


def images_fit(kernel: Kernel, shape: Shape, schedule: Mapping[str, int]) -> bool:
    """Whether a schedule of a warp-specialized convolution is legal."""
    wanted = {"roles", "tall", "wide", "stages", "k0", "warps", "m", "n"}
    if not wanted <= set(schedule) <= wanted | {"more"} or schedule["roles"] != 1:
        return False
    tall, wide, more, depth = schedule["tall"], schedule["wide"], schedule.get("more", 0), schedule["k0"]
    across = wide + more
    if (
        tall not in (GROUP, 2 * GROUP)
        or schedule["warps"] != tall // 16
        or (wide, more) not in WIDTHS
        or depth not in DEPTHS
    ):
        return False
    if {schedule["m"], schedule["n"]} != {tall, across} or not 2 <= schedule["stages"] <= MOST_STAGES:
        return False
    if 2 * schedule["stages"] * depth * (tall + across) + BEHIND > target().shared_per_block:
        return False
    found = if_fusable(images_of, kernel, schedule, PROBE, shape)
    if found is None or if_fusable(found.launch) is None:
        return False
    return schedule["m"] == (tall if found.positions == shape.rows else across)


def roles_fit(kernel: Kernel, shape: Shape, schedule: Mapping[str, int]) -> bool:
    """Whether a schedule of a warp-specialized kernel is legal."""
    if shape.kind == "contraction":
        return images_fit(kernel, shape, schedule)
    wanted = {"m", "n", "warps", "stages", "roles", *(f"k{i}" for i in range(len(shape.inner)))}
    if (
        not wanted <= set(schedule) <= wanted | {"pieces"}
        or schedule["roles"] != 1
        or schedule["warps"] not in (4, 8, 12)
        or shape.kind != "attention"
        or any(schedule[f"k{i}"] > padded(a.size) for i, a in enumerate(shape.inner))  # duplicates a smaller schedule
        or any(v & (v - 1) for name, v in schedule.items() if name not in ("warps", "stages"))
    ):
        return False
    tiling = tiling_of(shape, schedule)
    keys = max((k for a, k in tiling.k.items() if k < a.size), default=0)
    width = max((k for a, k in tiling.k.items() if k >= a.size), default=0)
    columns = tiling.n
    if schedule.get("pieces"):
        width = max((sum(w for _, w in widths(a.size)) for a, k in tiling.k.items() if k >= a.size), default=0)
        columns = sum(w for _, w in widths(shape.n))
    if (
        not 16 <= keys <= SCORES
        or not 2 <= schedule["stages"] <= 8
        or not 16 <= width <= WIDEST
        or columns + keys > WIDEST + (KEYS_BESIDE if columns == WIDEST else 0)
    ):
        return False
    turned = 0 if columns == width > WIDE_RESULT and not schedule.get("pieces") else columns // 2
    if 2 * (tiling.m * (width + turned) + schedule["stages"] * keys * (width + columns)) > target().shared_per_block:
        return False
    return if_fusable(emit_roles, kernel, tiling, PROBE, shape) is not None
