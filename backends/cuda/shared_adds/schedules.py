"""Lists candidate schedules (tuning parameters) of kernels that add up in shared memory, best guess first, and decides
whether one is legal."""

from __future__ import annotations

from itertools import product
from math import ceil, prod

from ...ir.kernel import Kernel
from ...machine import target
from .kernel import SharedAddSchedule, few_sums

VALUES = 4  # least values per element: with fewer, the sums of the blocks are more than the values
SHARED, MEMORY = 2e5, 5e4  # additions per µs in the shared memory of all SMs, and in memory to few addresses


def shared_add_schedules(kernel: Kernel, count: int) -> list[SharedAddSchedule]:
    """At most `count` schedules for `kernel`, best guess first; empty unless it adds many values to few elements.

    Three quarters use programmatic dependent launch (`early`); the others are the best ones without it.
    """
    store = few_sums(kernel)
    if store is None or prod(a.size for a in kernel.axes) < VALUES * kernel.buffers[store.buffer].span:
        return []
    every = (
        SharedAddSchedule(x, turns, threads)
        for x, turns, threads in product((1, 2, 4, 8), (1, 2, 4, 8, 16, 32, 64), (256, 512, 1024))
    )
    ranked = sorted((s for s in every if shared_adds_fit(kernel, s)), key=lambda s: (_us(kernel, s), s.key))
    plain = ranked[: count // 4]
    return [*(s.but(early=True) for s in ranked[: count - len(plain)]), *plain]


def shared_adds_fit(kernel: Kernel, s: SharedAddSchedule) -> bool:
    """Whether the schedule `s` is legal for `kernel`: no more values per thread than along the last axis."""
    return s.valid and few_sums(kernel) is not None and s.x < 2 * kernel.axes[-1].size


def _us(kernel: Kernel, s: SharedAddSchedule) -> float:
    """Estimated time in µs: additions in shared memory by the SMs that have a block, and those of the blocks' sums."""
    store, last = kernel.stores[0], kernel.axes[-1]
    values, sums = prod(a.size for a in kernel.axes), kernel.buffers[store.buffer].span
    boxes = values // last.size * ceil(last.size / s.x)
    blocks = ceil(boxes / (s.threads * s.turns))
    busy = min(1.0, blocks * s.threads / (1024 * target().multiprocessors))
    return values / (SHARED * busy) + blocks * sums / MEMORY + s.turns * 0.3


__all__ = ["shared_add_schedules", "shared_adds_fit"]
