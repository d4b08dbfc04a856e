"""Fixtures of the tests of torch.compile."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest

from .quick_searches import timed


@pytest.fixture
def fresh_dynamo() -> Iterator[None]:
    """Dynamo without graphs of other tests."""
    torch = pytest.importorskip("torch")
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def ignored_warnings() -> Iterator[None]:
    """Warnings are ignored."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.fixture
def programs_win(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program wins every comparison with eager execution."""
    judge = pytest.importorskip("tensor_graphs.torch_compile.judge")
    monkeypatch.setattr(judge, "timed", timed(100.0, 1.0))
