"""Locks the GPU by a file, so that the calling process and the measuring processes take turns: no kernel is timed while
another of them uses the device.

Processes that have the same file in TENSOR_GRAPHS_GPU_LOCK share the lock. Without that, a process shares it with its
several measuring processes and with the search processes that torch.compile starts (`own_lock`): independent processes
of a user do not keep each other out. A thread may take the lock again while it has it, by any of the functions here.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING

from ...costdb.keys.device import GPU_KIND
from .gpu_process import LOCK, own_lock

if TYPE_CHECKING:
    from filelock import BaseFileLock

HOLD_S, PAUSE_S = (
    0.05,
    0.15,
)  # maximum seconds the lock is held, and seconds it is free in between: about one tuning trial, and a few of them
WAIT_S = 1.0  # seconds, at most, that timing of whole calls waits for the lock
POLL_S = 0.002  # polling interval; measuring processes poll four times as often


class GpuLock:
    """Context manager that holds the GPU lock for the calling process.

    For use by one thread. During long work, the thread calls the object repeatedly, which releases the GPU to measuring
    processes for a moment, unless `uncontended` is set because no other process needs the GPU any more.
    """

    def __init__(self) -> None:
        self._lock = _shared_lock()
        self._since = 0.0
        self.uncontended = False  # whether no other process needs the GPU any more

    def __enter__(self) -> GpuLock:
        import torch

        if torch.cuda.is_available():
            # create the CUDA context before locking: it takes a second in which nothing runs on the GPU
            torch.empty(1, device=GPU_KIND)
        self._take()
        return self

    def _take(self) -> None:
        self._lock.acquire(poll_interval=POLL_S)
        self._since = time.monotonic()

    def __call__(self) -> None:
        """Release the lock for `PAUSE_S` seconds if it was held for `HOLD_S` seconds; not if `uncontended`."""
        if not self.uncontended and time.monotonic() - self._since > HOLD_S:
            self._end()
            time.sleep(PAUSE_S)
            self._take()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        """Release the lock after pending GPU work is done."""
        import torch

        try:
            if torch.cuda.is_initialized():
                torch.cuda.synchronize()
        finally:
            self._lock.release()


@contextmanager
def gpu_alone(seconds: float = WAIT_S) -> Iterator[None]:
    """Context manager in which no other process that shares the lock uses the GPU, for timing whole calls in this one:
    a search beside it would decide which is the faster. Without the lock if it is not free within `seconds`, or if
    there can be no such file."""
    held: BaseFileLock | None = None
    with suppress(OSError, RuntimeError):  # not free, or no file; RuntimeError: no locks on this file system
        lock = _shared_lock()
        lock.acquire(timeout=seconds, poll_interval=POLL_S)
        held = lock
    try:
        yield
    finally:
        if held is not None:
            held.release()


def _shared_lock() -> BaseFileLock:
    """The lock of this process: one object per file, which each thread may acquire repeatedly. Raises OSError if there
    is no file and none can be made."""
    from filelock import FileLock

    return FileLock(os.environ.get(LOCK) or own_lock(), is_singleton=True)


__all__ = ["GpuLock", "gpu_alone"]
