"""A worker process's own set-up: death with the parent, and the pipe to the parent."""

from __future__ import annotations

import os
import signal
import sys
from typing import TextIO


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends (Linux only)."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL, 0, 0, 0)


def own_output() -> TextIO:
    """Pipe to the parent, duplicated from stdout; stdout is redirected to stderr, so that prints of libraries do not
    enter the pipe.
    """
    pipe = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return pipe
