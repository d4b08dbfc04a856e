"""Sets up a worker process from inside: death with the parent, and the pipe to the parent."""

from __future__ import annotations

import atexit
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from threading import Lock, Thread
from typing import TextIO


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends (Linux only)."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL, 0, 0, 0)


def end_with_parent(last: Callable[[], object]) -> None:
    """Have this process call `last()` in a thread and end when its parent ends, however that happens (Linux only).
    Called in the main thread; takes SIGUSR2 and the wakeup descriptor of signals."""
    if sys.platform != "linux":
        return
    import ctypes

    reader, writer = os.pipe()
    os.set_blocking(writer, False)

    ending = Lock()

    def wait() -> None:
        while os.read(reader, 1) != bytes([signal.SIGUSR2]):
            pass
        ending.acquire()
        try:
            last()
        finally:
            os._exit(1)

    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGUSR2, 0, 0, 0)
    signal.signal(signal.SIGUSR2, lambda number, frame: None)  # the number is written at once, whatever Python does
    Thread(target=wait, name="parent's end", daemon=True).start()
    atexit.register(
        ending.acquire
    )  # no exit before `last` has ended, even if the main thread fails because `last` removed its files


def yield_to_others(nice: int) -> None:
    """Add `nice` to the niceness of this process and its later children.

    Without it, workers that compile or lower kernels in advance take the cores that the search itself and the processes
    that feed the device need.
    """
    with suppress(OSError, AttributeError):  # a sandbox may refuse it; not every platform has it
        os.nice(nice)


def own_output() -> TextIO:
    """Pipe to the parent, duplicated from stdout; stdout is redirected to stderr, so that prints of libraries do not
    enter the pipe.
    """
    pipe = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return pipe
