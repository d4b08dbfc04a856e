"""Fixtures of the tests of torch.compile."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest


@pytest.fixture
def fresh_dynamo() -> Iterator[None]:
    """Dynamo without graphs of other tests, warnings ignored."""
    torch = pytest.importorskip("torch")
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    torch._dynamo.reset()
