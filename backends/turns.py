"""Turns on the GPU between this process and those that measure there: what is measured has the device to itself."""

from __future__ import annotations

import os
import time
from types import TracebackType

from .gpu_process import LOCK, own_lock

TURN_S, PAUSE_S = (
    0.05,
    0.15,
)  # seconds of a turn, and between turns: about what trying a kernel takes, and a few of them
POLL_S = 0.002  # between looks at a lock that others have, who look four times as often


class Turns:
    """A context in which the device is this process' own; calling it now and then lets others have it in between, until it is
    `hurried`. To be used by one thread."""

    def __init__(self) -> None:
        from filelock import FileLock

        self._lock = FileLock(os.environ.get(LOCK) or own_lock())
        self._since = 0.0
        self.hurried = False  # whether nobody else needs the device any more

    def __enter__(self) -> Turns:
        import torch

        if torch.cuda.is_available():
            torch.empty(1, device="cuda")  # the first one takes a second, in which nothing runs there
        self._take()
        return self

    def _take(self) -> None:
        self._lock.acquire(poll_interval=POLL_S)
        self._since = time.monotonic()

    def __call__(self) -> None:
        """Let others have the device if it was this process' own for a while."""
        if not self.hurried and time.monotonic() - self._since > TURN_S:
            self._end()
            time.sleep(PAUSE_S)
            self._take()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        """Free the device when it has done what it was given."""
        import torch

        try:
            if torch.cuda.is_initialized():
                torch.cuda.synchronize()
        finally:
            self._lock.release()


__all__ = ["Turns"]
