"""Device abstraction for measuring: synchronization, capture and replay of calls, elapsed time.

`CudaDevice` is a GPU. `HostDevice` implements the same protocol on Torch's CPU tensors, with kernels in Triton's
interpreter, for tests without a GPU; its times are meaningless.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

from ...costdb.keys.device import GPU_KIND

Run = Callable[[], object]


class MeasuringDevice(Protocol):
    """Protocol of a device that runs and times kernels."""

    name: str  # Torch device name
    cache_bytes: int  # size of the last-level cache
    budget_bytes: int  # memory budget of rotating operand sets
    longest_us: float  # maximum duration of calls captured together
    rounds: int  # replays per full measurement
    sound: bool  # false after an aborted capture, which leaves Torch's memory pools in capture mode

    def synchronize(self) -> None:
        """Wait until all work on the device is done; raises errors of that work."""
        ...

    def capture(self, calls: Sequence[Run]) -> Run:
        """Record calls; returns a function that replays them in order, without host overhead."""
        ...

    def elapsed(self, run: Run) -> float:
        """Run `run` once; returns its time on the device in µs."""
        ...

    def laps(self, run: Run, count: int) -> list[float]:
        """Run `run` once untimed, then `count` times in a row; returns the time of each run on the device in µs."""
        ...

    def nothing(self) -> object:
        """Launch an empty kernel."""
        ...

    def clock_mhz(self) -> float:
        """Current SM clock in MHz; NaN if unknown."""
        ...


class CudaDevice:
    """Measuring device: the first visible NVIDIA GPU, through Torch."""

    name = GPU_KIND
    longest_us = 1000.0
    rounds = 15
    sound = True

    def __init__(self) -> None:
        import torch

        self.torch = torch
        properties = torch.cuda.get_device_properties(0)
        self.cache_bytes = int(properties.L2_cache_size)
        self.budget_bytes = min(4 << 30, int(properties.total_memory) // 32)  # per open kernel
        self._side = torch.cuda.Stream()
        self._start, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def synchronize(self) -> None:
        """Wait until all work is done (`MeasuringDevice.synchronize`)."""
        self.torch.cuda.synchronize()

    def capture(self, calls: Sequence[Run]) -> Run:
        """Capture calls in a CUDA graph; returns a function that replays it. Their allocations are in the graph's pool.

        Torch's context manager is not used: it collects garbage and empties caches each time, which takes longer than
        everything else here.
        """
        graph, main = self.torch.cuda.CUDAGraph(), self.torch.cuda.current_stream()
        self._side.wait_stream(main)
        with self.torch.cuda.stream(self._side):
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                for call in calls:
                    call()
            except BaseException:
                self.sound = False
                with contextlib.suppress(RuntimeError):  # the capture is invalid; its cause is the better message
                    graph.capture_end()
                raise
            graph.capture_end()
        main.wait_stream(self._side)
        replay: Run = graph.replay
        return replay

    def elapsed(self, run: Run) -> float:
        """Run `run` once between two CUDA events on the current stream; returns the time between them in µs."""
        self._start.record()
        run()
        self._end.record()
        self._end.synchronize()
        return float(self._start.elapsed_time(self._end)) * 1000.0

    def laps(self, run: Run, count: int) -> list[float]:
        """Times of `count` runs in µs, from CUDA events between runs; the device never waits for the host."""
        marks = [self.torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
        for mark in marks:
            run()
            mark.record()
        marks[-1].synchronize()
        return [float(a.elapsed_time(b)) * 1000.0 for a, b in pairwise(marks)]

    def nothing(self) -> object:
        """Launch a kernel of one thread that sleeps for zero cycles."""
        return self.torch.cuda._sleep(0)

    def clock_mhz(self) -> float:
        """SM clock in MHz from NVML, if installed; else NaN."""
        try:
            return float(self.torch.cuda.clock_rate())
        except Exception:  # an optional library or a driver without this query: many error types, one meaning
            return float("nan")


@dataclass
class HostDevice:
    """Measuring device for tests: the CPU as a stand-in for a GPU. The fields are those of `MeasuringDevice`, with
    small values."""

    name: str = "cpu"
    cache_bytes: int = 1 << 12
    budget_bytes: int = 1 << 20
    longest_us: float = 100.0
    rounds: int = 3
    sound: bool = True

    def synchronize(self) -> None:
        """Wait for the device's work (`MeasuringDevice.synchronize`): nothing to do, since calls on the host are
        synchronous."""

    def capture(self, calls: Sequence[Run]) -> Run:
        """Function that makes the calls one after another."""

        def replay() -> None:
            for call in calls:
                call()

        return replay

    def elapsed(self, run: Run) -> float:
        """Wall-clock time of a run in µs."""
        start = time.perf_counter_ns()
        run()
        return (time.perf_counter_ns() - start) / 1000.0

    def laps(self, run: Run, count: int) -> list[float]:
        """Wall-clock times of `count` runs in µs, after an untimed run."""
        return [self.elapsed(run) for _ in range(count + 1)][1:]

    def nothing(self) -> object:
        """Empty launch, to time launch overhead: a no-op on the host."""
        return None

    def clock_mhz(self) -> float:
        """Current SM clock (`MeasuringDevice.clock_mhz`): NaN, because a host has no GPU clock."""
        return float("nan")


def device_of(name: str) -> MeasuringDevice:
    """Measuring device with the name "cuda" or "cpu"."""
    return CudaDevice() if name == GPU_KIND else HostDevice()


def facts(device: MeasuringDevice) -> dict[str, Any]:
    """Properties of a GPU that its driver reports, part of the keys of measurements: name, multiprocessors, memory
    bytes, …; {} for the host.

    They are those of `costdb.keys.device.gpu_facts`.
    """
    from ...costdb.keys.device import gpu_facts

    return gpu_facts() if device.name == GPU_KIND else {}
