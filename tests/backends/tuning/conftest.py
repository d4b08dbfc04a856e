"""Measuring processes of these tests are started as users' are: how they start, fail and end is tested here."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def forked_workers() -> None:
    """In place of the fixture of tests/conftest.py."""
