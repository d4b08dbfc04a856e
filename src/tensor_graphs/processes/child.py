"""A worker process's own set-up: death with the parent, and the pipe to the parent."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from typing import TextIO


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends (Linux only)."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL, 0, 0, 0)


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
