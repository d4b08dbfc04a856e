"""Chooses sizes at which kernels are emitted to infer a text for every size, and to check the inferred text."""

from __future__ import annotations

from collections.abc import Iterator

from .size_text import Bounds

STEPS = (0.97, 0.72, 0.53, 0.39, 0.29, 0.21, 0.16, 0.115, 0.085, 0.062, 0.046, 0.034)  # of the largest size
SMALL = (113, 61, 31, 13)  # sizes tried for a schedule that is legal at no point
HELD_OUT = 3  # choices of sizes at which a form is compared with emitted text
HELD_OUT_STEPS = (1.0, 0.61, 0.33, 0.13, 0.05, 0.02)  # of the largest size
# size up to which the emitted text of a masked strategy (with bounds checks) is compared with an inferred form: a form
# that holds up to it is used for all larger sizes
FAR = 16381
TOP = 4096  # largest size at a point, if the range allows more


def probes(ranges: Bounds) -> list[dict[str, int]]:
    """Choices of sizes at which kernels are emitted to infer a text for every size: primes and their doubles over the
    `ranges` (size -> least, largest), the largest sizes first.

    With several sizes, successive choices step through each size differently, so that no two sizes are proportional.
    """
    ladders = {n: _ladder(low, min(high, max(TOP, 2 * low))) for n, (low, high) in ranges.items()}
    count = max(map(len, ladders.values()))
    found = []
    for i in range(count):
        point = {}
        for j, (name, ladder) in enumerate(ladders.items()):
            taken = ladder if j == 0 else ladder[: max(1, (2 * len(ladder)) // 3)]
            point[name] = taken[(i * (2 * j + 1) + j) % len(taken)]
        if point not in found:
            found.append(point)
    return found


def held_out(ranges: Bounds) -> Iterator[dict[str, int]]:
    """Yields choices of sizes in `ranges`, different from `probes`, at which inferred texts are checked; the largest
    first."""
    for i in range(len(HELD_OUT_STEPS)):
        found = {}
        for j, (name, (low, high)) in enumerate(ranges.items()):
            step = HELD_OUT_STEPS[(i + j) % len(HELD_OUT_STEPS)]
            found[name] = next((n for n in range(low + int((high - low) * step), low, -1) if n % 2 and n % 3), high)
        yield found


def _ladder(low: int, high: int) -> list[int]:
    """Sizes with large prime factors, the largest first.

    A third of them are even, to distinguish tiles of two elements.
    """
    span, found = high - low, dict[int, None]()
    for i, step in enumerate(STEPS):
        wanted, even = low + round(span * step), 1 + (i % 3 == 1)
        found[min(range(low, high + 1) if span < 64 else range(max(low, wanted - 32), min(high, wanted + 32) + 1),
                  key=lambda n: (n % even or not _prime(n // even), n in found, abs(n - wanted)))] = None  # fmt: skip
    return sorted(found, reverse=True)


def _prime(n: int) -> bool:
    return n > 1 and all(n % d for d in range(2, int(n**0.5) + 1))
