"""A process that was forked from one that has optimized: its threads and child processes stayed with the parent.

A forked child inherits the parent's objects, but none of its threads, and the pipes of processes that serve the parent. Without what is
here it would write into the parent's pipes, and wait for locks that nobody is left to release. So in a forked child all child processes
of the parent count as ended (whoever needs one starts one of its own), and locks are free.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

P = TypeVar("P", bound="subprocess.Popen[Any]")
F = TypeVar("F", bound=Callable[[], None])

_processes: weakref.WeakSet[subprocess.Popen[Any]] = weakref.WeakSet()
_locks: weakref.WeakSet[Lock] = weakref.WeakSet()
_renewals: list[Callable[[], None]] = []
ENDED = -9  # the exit code of a parent's process, as a forked child sees it


def adopted(process: P) -> P:
    """The process, noted as one that serves this process only: in a forked child it counts as ended."""
    _processes.add(process)
    return process


def in_forked_child(renew: F) -> F:
    """Have a function called in every forked child, by the only thread that is there: it makes shared state anew. A decorator."""
    _renewals.append(renew)
    return renew


class Lock:
    """A lock that is free in a forked child, whoever held it in the parent."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        _locks.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()

    def renew(self) -> None:
        """Forget who holds it."""
        self._lock = threading.RLock()


def _forked() -> None:
    """Make a forked child's state its own. A pipe's number leads nowhere from here on: what is still in its buffer reaches nobody."""
    for lock in list(_locks):
        lock.renew()
    with contextlib.suppress(OSError):
        nowhere = os.open(os.devnull, os.O_RDWR | getattr(os, "O_CLOEXEC", 0))
        for process in list(_processes):
            if process.returncode is None:
                process.returncode = ENDED
                for pipe in (process.stdin, process.stdout):
                    with contextlib.suppress(OSError, ValueError):  # closed already
                        if pipe is not None:
                            os.dup2(nowhere, pipe.fileno(), inheritable=False)
        os.close(nowhere)
    _processes.clear()
    for renew in _renewals:
        renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)

__all__ = ["ENDED", "Lock", "adopted", "in_forked_child"]
