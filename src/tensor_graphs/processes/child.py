"""A worker process's own set-up: death with the parent, and the pipe to the parent."""

from __future__ import annotations

import os
import signal
import sys
from typing import TextIO


def die_with_parent() -> None:
    """On Linux, have the kernel kill this process when its parent ends."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL, 0, 0, 0)


def own_output() -> TextIO:
    """The pipe to the parent, duplicated from stdout; stdout is redirected to stderr, for prints of libraries."""
    pipe = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return pipe
