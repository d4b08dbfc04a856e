"""Ranks candidate schedules (tuning parameters) of a CUDA kernel by an analytical cost model.

The model sees only a small description of the kernel (`RankingModel`), so kernels with equal descriptions share one
cached ranking. The constants were fitted to times measured on an H200. Estimated times are in µs; other ranks are
unitless. Lower is better.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence

from ...ir.tiling import divisors
from ...machine import cached_per_machine, target

Schedule = dict[str, int]  # in stored form (generate/schedule.py)
Fixed = tuple[tuple[str, int], ...]
Ranked = Iterator[tuple[Schedule, float]]

WHOLE = 64  # limit of elements of a row that a thread holds at once
REGISTERS = 96  # limit of 4-byte values per thread: more would risk spills
LATENCY = 0.9  # µs per dependent round of loads
JOIN = 3.0  # µs to combine the partial results of split-K
FLAGS = ("direct", "joint", "ahead")  # parameters whose value 1 is stored


class RankingModel(ABC):
    """Description of a kernel that suffices to rank its schedules; hashable, so that kernels with equal descriptions
    share one cached ranking (`ranked`)."""

    @abstractmethod
    def ranked(self) -> Ranked:
        """Yields (schedule as parameter name -> number, rank) for each candidate; lower ranks are better."""

    def prefetching(self, early: Sequence[Schedule]) -> Sequence[Schedule]:
        """Those of the schedules `early`, which use programmatic dependent launch, that shall also prefetch matrices
        into L2 (`warm`) while they wait for the previous kernel; none by default."""
        return ()


@cached_per_machine(4096)
def ranked(seen: RankingModel, count: int) -> tuple[Schedule, ...]:
    """At most `count` candidate schedules (parameter name -> number) for the kernel that `seen` describes, best rank
    first.

    About three quarters of them use programmatic dependent launch (`early`), some of these with an L2 prefetch
    (`RankingModel.prefetching`); the others are the best schedules without it.
    """
    found: dict[Fixed, float] = {}
    for schedule, rank in seen.ranked():
        key = tuple(
            sorted([item for item in schedule.items() if item[1] != 1 or item[0][0] in "tu" or item[0] in FLAGS])
        )
        known = found.get(key)
        if known is None or rank < known:
            found[key] = rank
    ordered = _varied((key for key, _ in sorted(found.items(), key=lambda item: (item[1], item[0]))), count)
    plain = ordered[: max(1, count // 4)]
    early = [s | {"early": 1} for s in ordered[: count - len(plain)]]
    for schedule in seen.prefetching(early):
        schedule["warm"] = 1
    return (*early, *plain)


def _varied(ordered: Iterable[Fixed], count: int) -> list[Schedule]:
    """The first `count` schedules, or all if they are fewer, taken round-robin over kinds, so that measuring a few
    covers every kind.

    Schedules of one kind differ only in vector widths, in the repeats along the reduction and, with threads along the
    reduction, in the threads along columns. Tensor-core schedules (with `warps`) of one kind have equal column tiles
    `n` and equal prefetch distances.
    """
    alike: dict[tuple[int, ...], int] = {}
    turns: list[tuple[int, Schedule]] = []
    for entries in ordered:
        s = dict(entries)
        if "warps" in s:
            key: tuple[int, ...] = tuple(s.get(k, 0) for k in ("n", "ahead", "direct", "joint"))
        else:
            beside = 0 if any(k[0] == "t" and k[1:].isdigit() for k in s) else s.get("tn", 1)
            key = (beside, *[s.get(k, 1) for k in ("tm", "un", "um", "t0", "t1", "split", "ahead")])
        turns.append((alike.get(key, 0), s))
        alike[key] = alike.get(key, 0) + 1
        if len(alike) == count:  # the first ones of `count` kinds
            break
    return [s for _, s in sorted(turns, key=lambda pair: pair[0])][:count]


def powers(low: int, high: int) -> list[int]:
    """The powers of two from `low`, a power of two itself, to `high`."""
    return [1 << i for i in range(low.bit_length() - 1, high.bit_length())]


def repeats(chunks: int, threads: int) -> list[int]:
    """Candidates for how many vectors each of `threads` threads holds of an axis of `chunks` vectors.

    Powers of two up to 8 with which the threads do not cover the axis, and the number with which they do if it is at
    most 16.
    """
    exact = -(-chunks // threads)
    return [*(r for r in (1, 2, 4, 8) if r < exact), *([exact] if exact <= 16 else [])]


def busy(programs: int, threads: int) -> float:
    """Factor by which idle SMs slow down `programs` blocks of `threads` threads: a partial last wave, or fewer blocks
    than SMs."""
    resident = max(1, target().threads // threads)
    waves = programs / (target().multiprocessors * resident)
    return -(-waves // 1) / waves if waves > 1 else max(1.0, target().multiprocessors / programs)


def splits(length: int, tiles: int, step: int, uneven: bool = False) -> list[int]:
    """Candidate split-K factors of a reduction axis of `length` elements, 1 first: at most 8 blocks per SM in total
    (`tiles`: number of output tiles), and at least `step` elements, or half the axis, per part.

    With `uneven`, the nearest divisors of `length` replace powers of two that do not divide it.
    """
    most, least = max(1, 8 * target().multiprocessors // tiles), max(2, min(step, length // 2))
    counts = divisors(length, powers(2, 512)) if uneven else [s for s in powers(2, 512) if length % s == 0]
    return [1, *(s for s in counts if s <= most and length // s >= least)]


def unsplit_beside(schedules: Sequence[Schedule], own: Fixed) -> Sequence[Schedule]:
    """The schedules of a matrix product that may be used in its kernel: all, or those without split-K if the kernel
    also has short reductions beside the product. `own`: schedule entries that such reductions fix; empty if there are
    none."""
    return [s for s in schedules if s.get("split", 1) == 1] if own else schedules
