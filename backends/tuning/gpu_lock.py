"""Locks the GPU by a file, so that the calling process and the measuring processes take turns: no kernel is timed while
another process uses the device.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import TracebackType

from ...costdb.keys.device import GPU_KIND
from .gpu_process import LOCK, own_lock

HOLD_S, PAUSE_S = (
    0.05,
    0.15,
)  # maximum seconds the lock is held, and seconds it is free in between: about one tuning trial, and a few of them
WAIT_S = 1.0  # seconds, at most, that timing of whole calls waits for the lock
POLL_S = 0.002  # polling interval; measuring processes poll four times as often


class GpuLock:
    """Context manager that holds the GPU lock for the calling process.

    For use by one thread. During long work, the thread calls the object repeatedly, which releases the GPU to measuring
    processes for a moment, unless `hurried` is set because no other process needs the GPU any more.
    """

    def __init__(self) -> None:
        from filelock import FileLock

        self._lock = FileLock(os.environ.get(LOCK) or own_lock())
        self._since = 0.0
        self.hurried = False  # whether no other process needs the GPU any more

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
        """Release the lock for `PAUSE_S` seconds if it was held for `HOLD_S` seconds; not if `hurried`."""
        if not self.hurried and time.monotonic() - self._since > HOLD_S:
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
    a search beside it would decide which is the faster. Without the lock if it is not free within `seconds`."""
    from filelock import FileLock

    lock, held = FileLock(os.environ.get(LOCK) or own_lock(), is_singleton=True), False
    with suppress(TimeoutError, RuntimeError):  # RuntimeError: this thread holds it in another way
        lock.acquire(timeout=seconds, poll_interval=POLL_S)
        held = True
    try:
        yield
    finally:
        if held:
            lock.release()


__all__ = ["GpuLock", "gpu_alone"]
