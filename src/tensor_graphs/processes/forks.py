"""Makes forks safe: resets the state of a process that was forked from one which has used worker processes and locks.

A forked child inherits the parent's objects, including pipes to the parent's worker processes, but none of its threads.
Without this module the child would write into the parent's pipes and wait for locks whose owner threads do not exist.
In a forked child, this module marks all child processes of the parent as ended (new ones are started on demand) and
frees all locks.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable
from typing import IO, Any, Protocol, TypeVar

_ThreadLock: Any = type(threading.RLock())


class Process(Protocol):
    """What a forked child changes of a subprocess of its parent, to see it as ended."""

    returncode: int | None

    @property
    def stdin(self) -> IO[Any] | None:
        """Pipe to it."""

    @property
    def stdout(self) -> IO[Any] | None:
        """Pipe from it."""


P = TypeVar("P", bound=Process)
F = TypeVar("F", bound=Callable[[], None])

_processes: weakref.WeakSet[Process] = weakref.WeakSet()
_locks: weakref.WeakSet[Lock] = weakref.WeakSet()
_renewals: list[Callable[[], None]] = []
ENDED = -9  # exit code of the parent's child processes, as seen by a forked child


def adopted(process: P) -> P:
    """Register a subprocess that belongs to this process only, and return it.

    A forked child sees the subprocess as ended.
    """
    _processes.add(process)
    return process


def in_forked_child(renew: F) -> F:
    """Decorator that calls a function in every forked child, on its only thread, to reset shared state."""
    _renewals.append(renew)
    return renew


class Lock(_ThreadLock):  # type: ignore[misc]
    """Reentrant lock of threads that is free in a forked child, even if a thread of the parent held it."""

    def __init__(self) -> None:
        _locks.add(self)

    def renew(self) -> None:
        """Free the lock, whoever holds it; called in a forked child only."""
        self._at_fork_reinit()


def _forked() -> None:
    """Reset inherited state in a forked child.

    Pipes to the parent's child processes are redirected to the null device, so flushing their buffers writes nothing
    into them.
    """
    for lock in list(_locks):
        lock.renew()
    with contextlib.suppress(OSError):
        nowhere = os.open(os.devnull, os.O_RDWR | getattr(os, "O_CLOEXEC", 0))
        for process in [p for p in _processes if p.returncode is None]:
            process.returncode = ENDED
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError, ValueError):  # already closed
                        os.dup2(nowhere, pipe.fileno(), inheritable=False)
        os.close(nowhere)
    _processes.clear()
    for renew in _renewals:
        renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)

__all__ = ["ENDED", "Lock", "adopted", "in_forked_child"]
