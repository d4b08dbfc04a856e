"""A clock that runs as on a machine that nobody else uses: `install()` before the package is imported.

It advances by the CPU time that this process and those below it use: by the most of one process, or half of all, as on
two cores; and by a fiftieth of the wall clock, so that waits end. `time.monotonic`, `time.perf_counter` and waits of
`subprocess` read it afterwards; `time.perf_counter_ns`, by which calls are timed, does not. A budget on a busy machine
thus buys about what it buys on an idle one with two cores.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from pathlib import Path

SAMPLING_S, IDLE, CORES, PACE = 0.03, 0.02, 2, 0.5
_TICKS = os.sysconf("SC_CLK_TCK")


def _nanoseconds(pid: int) -> int:
    """CPU time of all threads of a process; 0 if it has ended."""
    total = 0
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            total += int(Path(f"/proc/{pid}/task/{thread}/schedstat").read_bytes().split()[0])
    except OSError:
        pass
    return total


def _below(pid: int) -> list[int]:
    """The processes that a process and those below it have started, which still run."""
    found = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            for child in map(int, Path(f"/proc/{pid}/task/{thread}/children").read_bytes().split()):
                found += [child, *_below(child)]
    except OSError:
        pass
    return found


class QuietClock:
    """The clock, and a thread that advances it."""

    def __init__(self) -> None:
        self.seconds, self._wall = time.monotonic(), time.monotonic
        self._used: dict[int, int] = {}
        threading.Thread(target=self._run, daemon=True).start()

    def now(self) -> float:
        """Seconds."""
        return self.seconds

    def _run(self) -> None:
        before, sleep = self._wall(), time.sleep
        while True:
            used = {pid: _nanoseconds(pid) for pid in (os.getpid(), *_below(os.getpid()))}
            spent = [max(0, ns - self._used.get(pid, ns if not self._used else 0)) / 1e9 for pid, ns in used.items()]
            self._used, wall = used, self._wall()
            self.seconds += PACE * max(max(spent), sum(spent) / CORES, IDLE * (wall - before))
            before = wall
            sleep(SAMPLING_S)


def install() -> QuietClock:
    """Start a clock and put it in the place of those of this process."""
    clock = QuietClock()
    time.monotonic = time.perf_counter = clock.now  # type: ignore[assignment]
    subprocess._time = clock.now  # type: ignore[attr-defined]
    return clock
