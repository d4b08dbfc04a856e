"""The garbage collector is paused while many objects are made."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from tensor_graphs.extract.model.gc_pause import gc_frozen, gc_paused


def test_collection_pauses_and_goes_on() -> None:
    with gc_paused():
        assert not gc.isenabled()
        with gc_paused():
            pass
        assert not gc.isenabled(), "an inner pause does not end the outer one"
    assert gc.isenabled()
    with pytest.raises(ValueError), gc_paused():
        raise ValueError
    assert gc.isenabled()


def test_a_pause_lasts_until_the_last_thread_that_asked_for_it_ends() -> None:
    first, second = gc_paused(), gc_paused()
    with first:
        second.__enter__()
    assert not gc.isenabled(), "it began later, and goes on"
    second.__exit__(None, None, None)
    assert gc.isenabled()


def test_what_was_made_counts_as_old_and_what_was_frozen_stays_so() -> None:
    gc.collect(0)
    with gc_paused():
        made = [[i] for i in range(20_000)]
    assert gc.get_count()[0] < 2_000 and gc.get_freeze_count() == 0 and made
    gc.freeze()
    try:
        before = gc.get_freeze_count()
        with gc_paused():
            pass
        assert gc.get_freeze_count() == before > 0
    finally:
        gc.unfreeze()


FROZEN_FOR_A_WHILE = """
import gc, weakref
from tensor_graphs.extract.model.gc_pause import gc_frozen, gc_paused
class Ring: pass
ring = Ring()
ring.self = ring
gone = weakref.ref(ring)
with gc_frozen():
    assert gc.get_freeze_count()
    with gc_paused():
        pass
    del ring
    gc.collect()
    assert gone() is not None and gc.get_freeze_count(), "an inner pause does not thaw"
assert not gc.get_freeze_count()
gc.collect()
assert gone() is None
"""


def test_what_is_frozen_for_a_while_is_collected_afterwards() -> None:
    """In a process of its own: collecting the garbage of a process with all tests takes seconds."""
    subprocess.run([sys.executable, "-c", FROZEN_FOR_A_WHILE], check=True)


def test_frozen_objects_are_not_counted_at_every_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counting them takes tens of milliseconds with a whole model's candidates."""
    counted: list[int] = []
    with gc_frozen():
        monkeypatch.setattr(gc, "get_freeze_count", lambda: counted.append(1) or 0)
        with gc_paused():
            made = [[i] for i in range(20_000)]
        assert made and not counted
    gc.collect(0)
    with gc_paused():
        pass
    assert not counted, "nothing new is to be moved"
    with gc_paused():
        more = [[i] for i in range(20_000)]
    assert counted and more
    monkeypatch.undo()


def test_what_a_program_has_frozen_stays_so() -> None:
    gc.freeze()
    try:
        with gc_frozen():
            pass
        assert gc.get_freeze_count()
    finally:
        gc.unfreeze()


def test_what_the_interpreter_froze_when_it_started_counts_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    frozen_now, done = gc.get_freeze_count, list[str]()
    monkeypatch.setattr(gc, "get_freeze_count", lambda: frozen_now() + 400)
    for name in ("freeze", "unfreeze"):
        act = getattr(gc, name)
        monkeypatch.setattr(gc, name, lambda act=act, name=name: (done.append(name), act()))
    with gc_frozen():
        assert done == ["freeze"], "as Python 3.12 has it"
    with gc_paused():
        made = [[i] for i in range(20_000)]
    assert done == ["freeze", "unfreeze"] * 2 and made
