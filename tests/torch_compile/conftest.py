"""Fixtures of the tests of torch.compile."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from ..only_in import only_in
from .quick_searches import timed


@pytest.fixture(autouse=True)
def forked_searches(forks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that search are forks of one that has imported their modules. The children of test_backend.py start
    them as users' do."""
    if importlib.util.find_spec("torch") is not None:
        from tensor_graphs.torch_compile import search

        only_in(monkeypatch, search, "subprocess", Popen=forks.popen)


@pytest.fixture(scope="session", autouse=True)
def untimed_guards() -> Iterator[None]:
    """Dynamo does not time the guards of each graph, for which it first empties the caches of the processor: half of
    the time of compiling a small function."""
    with pytest.MonkeyPatch.context() as patch:
        if importlib.util.find_spec("torch") is not None:
            patch.setattr("torch._dynamo.guards.profile_guard_manager", lambda *given: 0.0, raising=False)
        yield


@pytest.fixture(autouse=True)
def quick_compiler(quick_c: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """C kernels are compiled at -O1: whole programs at -O3 are tested in tests/pipeline and tests/models."""
    if quick_c is not None:
        monkeypatch.setenv("CC", quick_c)


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
