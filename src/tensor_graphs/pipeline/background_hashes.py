"""Hashes weights in memory while their program is searched on a GPU: they take seconds for many gigabytes, and the
host has cores to spare."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread

from ..extract.model.clock import Clock
from .cache.weights_digest import WeightHashes
from .context.session import Session
from .stages.prepare import Task

THREADS = 3  # threads that hash beside the search


@contextmanager
def hashed_beside(session: Session, task: Task, *, wanted: bool) -> Iterator[WeightHashes]:
    """Context manager in which the weights of a task for a GPU are hashed in a background thread, if `wanted`; gives
    their hashes, which are not complete before `WeightHashes.wait`. Errors are ignored here: whoever needs a hash that
    is missing computes it."""
    hashes = WeightHashes()
    if not (wanted and task.on_gpu):
        yield hashes
        return
    ended, clock, params = Event(), Clock(), task.source.params
    session.background_clocks.append(("weights", clock))

    def work() -> None:
        with suppress(Exception), clock.running("hash"):
            hashes.add(hashes.missing(params), ended.is_set, THREADS)

    thread = Thread(target=work, name="hashes", daemon=True)
    hashes.wait = thread.join
    thread.start()
    try:
        yield hashes
    finally:
        ended.set()
        thread.join()


__all__ = ["hashed_beside"]
