"""Caches that are changed before they are read and while they are: the short form of `python -m tests.fuzz.tamper`."""

from __future__ import annotations

import pytest

from tensor_graphs.backends.registry import backend

from ..fuzz.tamper import tampered


@pytest.mark.skipif(bool(backend("c").unavailable()), reason="no C compiler")
def test_changed_caches_are_made_again_or_named() -> None:
    ends, wrong = tampered(3, 2, racing=False)
    assert not wrong and sum(ends.values()) == 3
    assert any("searched" in end for end in ends if end.startswith("plans")), ends
