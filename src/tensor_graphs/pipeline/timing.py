"""End-to-end timing of callables, interleaved so that machine drift affects all alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from math import inf, sqrt
from statistics import median
from typing import Any

Run = Callable[[], Any]


def wall_us(call: Run) -> float:
    """Wall-clock time of a call in µs."""
    began = time.perf_counter_ns()
    call()
    return (time.perf_counter_ns() - began) / 1e3


def gpu_us(call: Run) -> float:
    """Time of a call in µs between two CUDA events on the current stream."""
    import torch

    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e3


def clock_of(device: str) -> Callable[[Run], float]:
    """Timing function for a program's Torch device (`Program.tensors`).

    Wall clock for "" (no tensors) and "cpu", CUDA events otherwise.
    """
    return wall_us if device in ("", "cpu") else gpu_us


FLUSHES = 10  # writes of a buffer before a timed call: together longer than the host takes to launch a call


def cold_clock_of(device: str) -> Callable[[Run], float]:
    """Timing function as `clock_of`; on a GPU without host overhead and with cold caches.

    Each call is queued behind writes of a buffer twice the size of the L2 cache.
    """
    if device in ("", "cpu"):
        return wall_us
    import torch

    nbytes = 2 * torch.cuda.get_device_properties(device).L2_cache_size
    buffer = torch.empty(nbytes, dtype=torch.uint8, device=device)

    def us(call: Run) -> float:
        for _ in range(FLUSHES):
            buffer.zero_()
        return gpu_us(call)

    return us


SETTLED = 0.02
"""Relative standard error of a median at which sampling may stop."""


def is_settled(samples: Sequence[float]) -> bool:
    """Whether the relative standard error of the samples' median is below SETTLED.

    It is estimated from the median absolute deviation.
    """
    middle = median(samples)
    spread = median([abs(s - middle) for s in samples])
    return 1.2533 * 1.4826 * spread <= SETTLED * middle * sqrt(len(samples))


def sampled(
    calls: Mapping[str, Run], *, seconds: float = 2.0, settled: float = inf, least: int = 5, most: int = 200,
    clock: Callable[[Run], float] = wall_us, ended: Callable[[], bool] = lambda: False, first: Run = lambda: None,
) -> dict[str, list[float]]:  # fmt: skip
    """Times in µs of each call, from interleaved rounds after two warm-up rounds.

    Stops after `seconds`, or after `settled` seconds once all medians are settled, or when `ended()` (polled after each
    round, at least one is counted); `least` and `most` rounds otherwise. `first()` runs untimed before each call.
    """
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
    """Median time of each call in µs; keywords as for `sampled`."""
    return {n: median(s) for n, s in sampled(calls, **how).items()}


FEW, FEW_NOISE = 5, 0.25
"""Below FEW samples, differences must exceed FEW_NOISE (relative)."""


def margin(one: Sequence[float], other: Sequence[float], noise: float) -> float:
    """Relative difference of two calls' samples that is treated as noise: FEW_NOISE for fewer than FEW samples."""
    return FEW_NOISE if min(len(one), len(other)) < FEW else noise


def is_surely_faster(one: Sequence[float], other: Sequence[float], noise: float) -> bool:
    """Whether one call is faster than the other by more than noise, with the `margin` of few samples."""
    return is_faster(one, other, margin(one, other, noise))


def is_faster(one: Sequence[float], other: Sequence[float], noise: float) -> bool:
    """Whether one call is faster than another by more than the fraction `noise`, in median and in minimum.

    Interference on the machine only ever adds time, and not equally to both.
    """
    return all(of(one) * (1 + noise) < of(other) for of in (median, min))


def why_not_faster(one: Sequence[float], other: Sequence[float], noise: float) -> str:
    """Why `is_surely_faster` is false although the median of `one` is smaller; "" if the median is not smaller."""
    if median(one) >= median(other):
        return ""
    found, fewest = margin(one, other, noise), min(len(one), len(other))
    said = f"the noise of {100 * found:.0f} %" + (
        f" of {fewest} timed {'call' if fewest == 1 else 'calls'}" if fewest < FEW else ""
    )
    if median(one) * (1 + found) >= median(other):
        return f"the difference is within {said}"
    return f"the fastest calls differ by less than {said}"
