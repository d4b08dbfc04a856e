"""End-to-end times of a few callables, interleaved so that drift of the machine hits all alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from math import inf, sqrt
from statistics import median
from typing import Any

Run = Callable[[], Any]


def wall_us(call: Run) -> float:
    """µs of a call on the host's clock."""
    began = time.perf_counter_ns()
    call()
    return (time.perf_counter_ns() - began) / 1e3


def gpu_us(call: Run) -> float:
    """µs of a call between two events on the current CUDA stream."""
    import torch

    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e3


def clock_of(device: str) -> Callable[[Run], float]:
    """What times a call on a device."""
    return wall_us if device == "cpu" else gpu_us


SETTLED = 0.02
"""Standard error of a median, as a share of it, from which on more rounds would tell nothing that a reader could use."""


def is_settled(samples: Sequence[float]) -> bool:
    """Whether the median of some times is known to about SETTLED, by their median absolute deviation."""
    middle = median(samples)
    spread = median([abs(s - middle) for s in samples])
    return 1.2533 * 1.4826 * spread <= SETTLED * middle * sqrt(len(samples))


def sampled(
    calls: Mapping[str, Run], *, seconds: float = 2.0, settled: float = inf, least: int = 5, most: int = 200,
    clock: Callable[[Run], float] = wall_us, ended: Callable[[], bool] = lambda: False, first: Run = lambda: None,
) -> dict[str, list[float]]:  # fmt: skip
    """µs of each call. Rounds of one call each, in turn, after two warm-up rounds, for about `seconds`, or from
    `settled` seconds on until all medians are; `ended`: asked after each round, of which there is one at least.
    `first`: done before each call, and not timed."""
    samples: dict[str, list[float]] = {n: [] for n in calls}
    start = time.perf_counter()
    for turn in range(most + 2):
        for name, call in calls.items():
            first()
            took = clock(call)
            if turn >= 2:
                samples[name].append(took)
        took_all = time.perf_counter() - start
        if turn >= 2 and ended():
            break
        if turn < least + 2:
            continue
        if took_all > seconds or (took_all > settled and all(is_settled(s) for s in samples.values())):
            break
    return samples


def interleaved(calls: Mapping[str, Run], **how: Any) -> dict[str, float]:
    """Median µs of each call; `how` is `sampled`'s."""
    return {n: median(s) for n, s in sampled(calls, **how).items()}


FEW, FEW_NOISE = 5, 0.25
"""Samples below which a difference must be larger than noise is, and the share that it must be then."""


def is_surely_faster(one: Sequence[float], other: Sequence[float], noise: float) -> bool:
    """`is_faster`, of fewer than FEW samples by FEW_NOISE."""
    return is_faster(one, other, FEW_NOISE if min(len(one), len(other)) < FEW else noise)


def is_faster(one: Sequence[float], other: Sequence[float], noise: float) -> bool:
    """Whether samples of one call say that it is faster than the other by more than `noise`, a share: by their medians and by the
    fastest of each. Others at work on the machine only ever add time, and not to both alike."""
    return all(of(one) * (1 + noise) < of(other) for of in (median, min))
