"""Times callables end to end, interleaved so that changes in the machine's speed affect all alike."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from math import inf, sqrt
from statistics import median
from typing import Any

from ...backends.tuning.gpu_lock import gpu_alone
from ...costdb.keys.device import GPU_KIND
from ...wording import counted, spelled_us

Run = Callable[[], Any]


QUEUED = 16  # calls in a row on a GPU without waiting for their results


class Instant:
    """A point in time of the calling thread: wall clock, CPU time, and time for which it waited for a core."""

    def __init__(self) -> None:
        self._waited = _waited_ns()
        self._cpu, self._wall = time.thread_time_ns(), time.perf_counter_ns()

    def us(self) -> float:
        """Wall-clock µs since this instant, less the time for which the thread waited for a core while others ran on
        it.
        """
        wall, cpu = time.perf_counter_ns() - self._wall, time.thread_time_ns() - self._cpu
        waited = (
            _waited_ns() - self._waited
        )  # also waits outside of the two clocks: hence the CPU time as a lower limit
        return max(wall - waited, min(cpu, wall)) / 1e3


def _waited_ns() -> int:
    """Nanoseconds for which this thread was ready to run and had no core, since its start; 0 where the system counts
    none."""
    try:
        with open("/proc/thread-self/schedstat", "rb", buffering=0) as file:
            return int(file.read(96).split()[1])
    except (OSError, ValueError, IndexError):
        return 0


def wall_us(call: Run) -> float:
    """Call `call`; returns its wall-clock time in µs, less the time for which this thread waited for a core while
    others ran on it."""
    began = Instant()
    call()
    return began.us()


def gpu_us(call: Run) -> float:
    """Call `call`; returns its time in µs between two CUDA events on the current stream."""
    import torch

    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e3


def idle_us(call: Run) -> float:
    """Call `call` on an idle GPU; returns its wall-clock time in µs until the GPU is idle again."""
    import torch

    torch.cuda.synchronize()
    return wall_us(lambda: (call(), torch.cuda.synchronize()))


def call_clock_of(device: str) -> Callable[[Run], float]:
    """Timing function for whole calls on a device: wall clock, on a GPU until it is idle (`idle_us`)."""
    return idle_us if device.startswith(GPU_KIND) else wall_us


def clock_of(device: str) -> Callable[[Run], float]:
    """Timing function for a program's Torch device (`Program.tensors`).

    Wall clock for "" (no tensors) and "cpu", CUDA events otherwise.
    """
    return wall_us if device in ("", "cpu") else gpu_us


def repeated(call: Run, times: int) -> Run:
    """Callable that makes several calls in a row."""

    def calls() -> None:
        for _ in range(times):
            call()

    return call if times == 1 else calls


def device_alone(device: str) -> AbstractContextManager[None]:
    """Context in which whole calls on a device are timed: on a GPU, measuring processes of other searches that share
    the lock wait meanwhile (`gpu_alone`)."""
    return gpu_alone() if device.startswith(GPU_KIND) else nullcontext()


FLUSHES = 10  # writes of a buffer before a timed call: together longer than the host takes to launch a call


def cold_clock_of(device: str) -> Callable[[Run], float]:
    """Timing function as `clock_of` for a device; on a GPU without host overhead and with cold caches.

    Each call is queued behind writes of a buffer twice the size of the L2 cache, which evict its data.
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


FEW, FEW_NOISE = 5, 0.25
"""Below FEW samples, differences must exceed FEW_NOISE (relative)."""
FEW_S = 0.4
"""Seconds that FEW rounds may take although time is up."""


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
    """Times in µs of each call, taken by `clock`, from interleaved rounds after two warm-up rounds.

    At most `most` rounds. From `least` rounds on, stops after `seconds`, or after `settled` seconds once all medians
    are settled. Stops when `ended()` is true (polled after each round but the first; if it is true after the second
    one, that one is counted). `first()` runs untimed before each call.
    """
    samples: dict[str, list[float]] = {n: [] for n in calls}
    start = time.perf_counter()
    for turn in range(most + 2):
        took: dict[str, float] = {}
        for name, call in calls.items():
            first()
            took[name] = clock(call)
        took_all = time.perf_counter() - start
        over = turn >= 1 and ended()
        if turn >= 2 or over:
            for name, us in took.items():
                samples[name].append(us)
        if over:
            break
        if turn < least + 2:
            continue
        if took_all > seconds or (took_all > settled and all(is_settled(s) for s in samples.values())):
            break
    return samples


def after_few(ended: Callable[[], bool], seconds: float = FEW_S) -> Callable[[], bool]:
    """A predicate for one call of `sampled` that is true when `ended` is, but not before FEW rounds, if these take less
    than `seconds`: a difference of a tenth cannot be told from noise by one sample, and a round takes milliseconds."""
    rounds, until = itertools.count(1), time.perf_counter() + seconds
    return lambda: (next(rounds) > FEW or time.perf_counter() >= until) and ended()


def sampled_alone(
    device: str, calls: Mapping[str, Run], *, warm: int, first: Run, ended: Callable[[], bool], **how: Any
) -> dict[str, list[float]]:
    """`sampled` whole calls on a GPU under its lock (`device_alone`), a few rounds even if `ended` (`after_few`).

    Each call is made `warm` times before: the second call of a program records its launches, in up to a second. `how`:
    the other keyword arguments of `sampled`.
    """
    with device_alone(device):
        for call in warm * list(calls.values()):
            first()
            call()
        return sampled(calls, first=first, ended=after_few(ended), **how)


def interleaved(calls: Mapping[str, Run], **how: Any) -> dict[str, float]:
    """Median time in µs of each call, by the names in `calls`. The calls take turns (`sampled`), so that disturbances
    meet all of them; `how`: keyword arguments of `sampled`, such as `seconds`."""
    return {n: median(s) for n, s in sampled(calls, **how).items()}


def margin(one: Sequence[float], other: Sequence[float], noise: float) -> float:
    """Relative difference of the samples `one` and `other` of two calls that counts as noise: `noise`, or FEW_NOISE for
    fewer than FEW samples."""
    return FEW_NOISE if min(len(one), len(other)) < FEW else noise


def is_surely_faster(one: Sequence[float], other: Sequence[float], noise: float) -> bool:
    """Whether one call is faster than the other (`is_faster`) by more than `margin`, which is larger for few samples.

    `one`, `other`: times of the calls. `noise`: relative difference that counts as noise if there are enough samples.
    """
    return is_faster(one, other, margin(one, other, noise))


def is_faster(one: Sequence[float], other: Sequence[float], noise: float) -> bool:
    """Whether one call is faster than another by more than the fraction `noise`, in median and in minimum.

    Interference on the machine only ever adds time, and not equally to both.
    """
    return all(of(one) * (1 + noise) < of(other) for of in (median, min))


#: Wins minus losses in `wins_pairs`, in standard deviations of that number where both calls are equally fast.
SIGNIFICANT = 1.7


def wins_pairs(one: Sequence[float], other: Sequence[float], noise: float) -> bool:
    """Whether one call is faster than another, by more than the fraction `noise`, in significantly more than half of
    the pairs.

    Pairs are samples taken next to each other, so that slow changes of the machine affect both. One-sided sign test in
    its normal approximation: 3 of 3 pairs, 9 of 12, 30 of 48. (If `noise` is 0, equally fast calls win that many pairs
    by chance in 12, 7 and 6 % of cases.)
    """
    won, count = pairs_won(one, other, noise)
    return 2 * won - count >= SIGNIFICANT * sqrt(count) > 0


def pairs_won(one: Sequence[float], other: Sequence[float], noise: float) -> tuple[int, int]:
    """(pairs in which one call is faster than another by more than the fraction `noise`, all pairs)."""
    pairs = [a * (1 + noise) < b for a, b in zip(one, other)]
    return sum(pairs), len(pairs)


def why_pairs_lost(one: Sequence[float], other: Sequence[float], noise: float) -> str:
    """Why one call is not faster in pairs of samples: the reason, in words, why `wins_pairs` returns False for these
    arguments."""
    won, count = pairs_won(one, other, noise)
    return f"only {won} of {count} pairs of calls are won by more than the noise of {100 * noise:.0f} %"


def why_not_faster(one: Sequence[float], other: Sequence[float], noise: float) -> str:
    """Why one call is not surely faster: the reason, in words, why `is_surely_faster` returns False for these arguments
    although the median of `one` is smaller; "" if the median is not smaller."""
    if median(one) >= median(other):
        return ""
    found, fewest = margin(one, other, noise), min(len(one), len(other))
    noise_text = f"the noise of {100 * found:.0f} %" + (f" of {counted(fewest, 'timed call')}" if fewest < FEW else "")
    if median(one) * (1 + found) >= median(other):
        return f"the difference is within {noise_text}"
    fastest = f"the fastest calls take {spelled_us(min(one))} and {spelled_us(min(other))}"
    return fastest if min(one) >= min(other) else f"{fastest}: they differ by less than {noise_text}"
