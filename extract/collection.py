"""Pausing Python's cyclic garbage collector while many small objects are made that all stay alive."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from ..egraph.forks import Lock, in_forked_child

STARTUP = 5_000  # objects: an interpreter may freeze some of its own when it starts (3.12: some 400), a program tens of thousands


def _frozen_by_others() -> bool:
    """Whether a program has frozen objects of its own."""
    return gc.get_freeze_count() > STARTUP


@contextmanager
def no_collection() -> Iterator[None]:
    """Without it every few thousand new objects cost a walk over the hundreds of thousands that live already: a third
    of the time of building candidates. Reference counting goes on as ever.

    What was made counts as old afterwards (freezing and thawing moves it there), so that it is not walked over at once;
    where a program has frozen objects of its own, they stay so. Several threads may ask for it: it lasts until the last one ends."""
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
                if not _frozen_by_others():
                    gc.freeze()
                    gc.unfreeze()
                gc.enable()


_pausing = Lock()
_paused = {"by": 0, "on": 0}  # how many ask for it now; whether the collector is to go on in the end
_frozen = {"by": 0}  # how many have frozen what lives


@in_forked_child
def _alone() -> None:
    """The threads that have paused the collector are the parent's: the child collects again."""
    if _paused["by"] and _paused["on"]:
        gc.enable()
    if _frozen["by"]:
        gc.unfreeze()
    _paused["by"] = _frozen["by"] = 0


@contextmanager
def frozen() -> Iterator[None]:
    """What lives now is not walked over meanwhile: a collection takes seconds beside the candidates of a whole model. Where a program
    has frozen objects of its own, nothing is done. Several threads may ask for it: it lasts until the last one ends."""
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


__all__ = ["frozen", "no_collection"]
