"""The garbage collector while many objects are made."""

from __future__ import annotations

import gc

import pytest

from tensor_graphs.extract.collection import no_collection


def test_collection_pauses_and_goes_on() -> None:
    with no_collection():
        assert not gc.isenabled()
        with no_collection():
            pass
        assert not gc.isenabled(), "an inner pause does not end the outer one"
    assert gc.isenabled()
    with pytest.raises(ValueError), no_collection():
        raise ValueError
    assert gc.isenabled()


def test_what_was_made_counts_as_old_and_what_was_frozen_stays_so() -> None:
    gc.collect()
    with no_collection():
        made = [[i] for i in range(20_000)]
    assert gc.get_count()[0] < 2_000 and gc.get_freeze_count() == 0 and made
    gc.freeze()
    try:
        before = gc.get_freeze_count()
        with no_collection():
            pass
        assert gc.get_freeze_count() == before > 0
    finally:
        gc.unfreeze()
