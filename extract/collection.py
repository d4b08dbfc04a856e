"""Pausing Python's cyclic garbage collector while many small objects are made that all stay alive."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

STARTUP = 5_000  # objects: an interpreter may freeze some of its own when it starts (3.12: some 400), a program tens of thousands


def _frozen_by_others() -> bool:
    """Whether a program has frozen objects of its own."""
    return gc.get_freeze_count() > STARTUP


@contextmanager
def no_collection() -> Iterator[None]:
    """Without it every few thousand new objects cost a walk over the hundreds of thousands that live already: a third
    of the time of building candidates. Reference counting goes on as ever.

    What was made counts as old afterwards (freezing and thawing moves it there), so that it is not walked over at once;
    where a program has frozen objects of its own, they stay so."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            if not _frozen_by_others():
                gc.freeze()
                gc.unfreeze()
            gc.enable()


@contextmanager
def frozen() -> Iterator[None]:
    """What lives now is not walked over meanwhile: a collection takes seconds beside the candidates of a whole model. Where a program
    has frozen objects of its own, nothing is done."""
    ours = not _frozen_by_others()
    if ours:
        gc.freeze()
    try:
        yield
    finally:
        if ours:
            gc.unfreeze()


__all__ = ["frozen", "no_collection"]
