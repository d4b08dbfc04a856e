"""A shorter switch interval of Python's threads (`sys.setswitchinterval`) during searches."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from .forks import Lock, in_forked_child

SWITCH_S = 0.0005  # interval inside `threads_alternate`; Python's default is 0.005


@contextmanager
def threads_alternate() -> Iterator[None]:
    """Context manager in which a thread that waits for the interpreter lock gets it after SWITCH_S seconds.

    A computing thread keeps the lock for that long when another thread is ready to run. Threads that mostly wait for
    processes need the lock for microseconds, several times per message: with Python's default of 5 ms the GPU would be
    idle while the host searches. No effect where the program has set a shorter interval. Reentrant across threads: the
    interval is restored when the last block ends.
    """
    with _changing:
        if not _active["by"]:
            _active["before"] = sys.getswitchinterval()
            if _active["before"] > SWITCH_S:
                sys.setswitchinterval(SWITCH_S)
        _active["by"] += 1
    try:
        yield
    finally:
        with _changing:
            _active["by"] -= 1
            if not _active["by"]:
                sys.setswitchinterval(_active["before"])


_changing = Lock()
_active = {"by": 0, "before": 0.005}  # number of active blocks; the interval to restore, in seconds


@in_forked_child
def _alone() -> None:
    """Restore the interval in a forked child, which has none of the threads."""
    if _active["by"]:
        sys.setswitchinterval(_active["before"])
    _active["by"] = 0


__all__ = ["threads_alternate"]
