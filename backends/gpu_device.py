"""What measuring needs of a device: order, replayable sequences of calls, elapsed time. CUDA, or the CPU in its place.

The CPU stands in where there is no GPU: the same protocol on Torch's CPU tensors, with kernels in Triton's interpreter.
Its times say nothing; that everything runs is the point.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

Run = Callable[[], object]


class Device(Protocol):
    """Where kernels run and are timed."""

    name: str  # Torch's name of it
    cache_bytes: int  # of its last-level cache
    budget_bytes: int  # that rotating copies of operands may take
    longest_us: float  # of calls captured together
    rounds: int  # replays in the full protocol
    sound: bool  # whether no recording broke off, which leaves Torch's memory pools as if it went on

    def synchronize(self) -> None:
        """Wait until all work is done; raises what it did wrong."""
        ...

    def capture(self, calls: Sequence[Run]) -> Run:
        """One call that replays them in order without the host's overhead."""
        ...

    def elapsed(self, run: Run) -> float:
        """µs on the device from before to after it."""
        ...

    def laps(self, run: Run, count: int) -> list[float]:
        """µs on the device of each of `count` runs in a row, with one before them: what a first one takes longer is not counted."""
        ...

    def nothing(self) -> object:
        """Launch a kernel that does nothing."""
        ...

    def clock_mhz(self) -> float:
        """The multiprocessors' clock now; NaN where unknown."""
        ...


class Cuda:
    """The first visible NVIDIA GPU, through Torch."""

    name = "cuda"
    longest_us = 1000.0
    rounds = 15
    sound = True

    def __init__(self) -> None:
        import torch

        self.torch = torch
        properties = torch.cuda.get_device_properties(0)
        self.cache_bytes = int(properties.L2_cache_size)
        self.budget_bytes = min(4 << 30, int(properties.total_memory) // 32)  # of each kernel that is open
        self._side = torch.cuda.Stream()
        self._start, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def synchronize(self) -> None:
        """See `Device.synchronize`."""
        self.torch.cuda.synchronize()

    def capture(self, calls: Sequence[Run]) -> Run:
        """A CUDA graph of the calls; what they allocate lives in the graph's own pool. (Torch's context manager for this
        collects garbage and empties its caches each time, which takes longer than all else here.)"""
        graph, main = self.torch.cuda.CUDAGraph(), self.torch.cuda.current_stream()
        self._side.wait_stream(main)
        with self.torch.cuda.stream(self._side):
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                for call in calls:
                    call()
            except BaseException:
                self.sound = False
                with contextlib.suppress(RuntimeError):  # the capture is void: what made it so is the better message
                    graph.capture_end()
                raise
            graph.capture_end()
        main.wait_stream(self._side)
        replay: Run = graph.replay
        return replay

    def elapsed(self, run: Run) -> float:
        """By events on the current stream."""
        self._start.record()
        run()
        self._end.record()
        self._end.synchronize()
        return float(self._start.elapsed_time(self._end)) * 1000.0

    def laps(self, run: Run, count: int) -> list[float]:
        """By events between them; the device never waits for the host."""
        marks = [self.torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
        for mark in marks:
            run()
            mark.record()
        marks[-1].synchronize()
        return [float(a.elapsed_time(b)) * 1000.0 for a, b in pairwise(marks)]

    def nothing(self) -> object:
        """A kernel of one thread that waits for no cycle."""
        return self.torch.cuda._sleep(0)

    def clock_mhz(self) -> float:
        """As the driver says, where its library is installed."""
        try:
            return float(self.torch.cuda.clock_rate())
        except Exception:  # an optional library, a driver that does not tell: many kinds of errors, one meaning
            return float("nan")


@dataclass
class Host:
    """The CPU in a GPU's place, for tests."""

    name: str = "cpu"
    cache_bytes: int = 1 << 12
    budget_bytes: int = 1 << 20
    longest_us: float = 100.0
    rounds: int = 3
    sound: bool = True

    def synchronize(self) -> None:
        """Everything is done when its call returns."""

    def capture(self, calls: Sequence[Run]) -> Run:
        """The calls one after the other."""

        def replay() -> None:
            for call in calls:
                call()

        return replay

    def elapsed(self, run: Run) -> float:
        """By the wall clock."""
        start = time.perf_counter_ns()
        run()
        return (time.perf_counter_ns() - start) / 1000.0

    def laps(self, run: Run, count: int) -> list[float]:
        """One by one."""
        return [self.elapsed(run) for _ in range(count + 1)][1:]

    def nothing(self) -> object:
        """Nothing."""
        return None

    def clock_mhz(self) -> float:
        """Unknown."""
        return float("nan")


def device_of(name: str) -> Device:
    """The device called "cuda" or "cpu"."""
    return Cuda() if name == "cuda" else Host()


def facts(device: Device) -> dict[str, Any]:
    """What names the device in the keys of measurements."""
    from ..costdb.device import gpu_facts

    return gpu_facts() if device.name == "cuda" else {}
