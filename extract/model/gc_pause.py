"""Pauses Python's cyclic garbage collector while many small long-lived objects are allocated."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from ...processes.forks import Lock, in_forked_child

# frozen objects: an interpreter may freeze some of its own at startup (3.12: some 400), a program tens of thousands
MAX_STARTUP_FROZEN = 5_000
FEW_NEW = 10_000  # new objects that a collection traverses in a fraction of a millisecond


def _frozen_by_others() -> bool:
    """Whether the program (not the interpreter) has frozen objects with `gc.freeze`. Takes time in proportion to the
    number of frozen objects: 10 ms for a million."""
    return gc.get_freeze_count() > MAX_STARTUP_FROZEN


@contextmanager
def gc_paused() -> Iterator[None]:
    """Context manager that disables Python's cyclic garbage collector.

    A collection every few thousand allocations traverses hundreds of thousands of live objects: a third of the time of
    building candidates. Reference counting is unaffected. On exit new objects are moved to the oldest generation
    (freeze, unfreeze), so that the next young collection skips them; this step is left out if there are few, or where
    objects are frozen (`gc_frozen`, or the program has frozen some of its own). Reentrant across threads: the collector
    resumes when the last block ends.
    """
    with _pausing:
        if not _paused["by"]:
            _paused["on"] = gc.isenabled()
            gc.disable()
        _paused["by"] += 1
    try:
        yield
    finally:
        with _pausing:
            _paused["by"] -= 1
            if _paused["on"] and not _paused["by"]:
                if not _frozen["by"] and gc.get_count()[0] > FEW_NEW and not _frozen_by_others():
                    gc.freeze()
                    gc.unfreeze()
                gc.enable()


_pausing = Lock()
_paused = {"by": 0, "on": 0}  # number of active blocks; whether to enable the collector after the last one
_frozen = {"by": 0}  # number of active `gc_frozen` blocks


@in_forked_child
def _alone() -> None:
    """Reset in a forked child: the pausing threads exist only in the parent, so the child enables the collector."""
    if _paused["by"] and _paused["on"]:
        gc.enable()
    if _frozen["by"]:
        gc.unfreeze()
    _paused["by"] = _frozen["by"] = 0


@contextmanager
def gc_frozen() -> Iterator[None]:
    """Context manager that excludes all live objects from garbage collections.

    With the candidates of a whole model alive, one collection takes seconds. No effect where the program has frozen
    objects of its own. Reentrant across threads: lasts until the last block ends.
    """
    with _pausing:
        ours = bool(_frozen["by"]) or not _frozen_by_others()
        if ours:
            gc.freeze()
            _frozen["by"] += 1
    try:
        yield
    finally:
        with _pausing:
            if ours and _frozen["by"]:
                _frozen["by"] -= 1
                if not _frozen["by"]:
                    gc.unfreeze()


__all__ = ["gc_frozen", "gc_paused"]
