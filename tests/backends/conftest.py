"""Fixtures and the golden-file option of the backend tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ..triton_interpreter import quickened
from .cuda_host import emulate


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite the golden files from what is emitted now")


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Emulation of cuda-core and of a GPU on this CPU (`cuda_host.emulate`)."""
    emulate(monkeypatch, tmp_path)


@pytest.fixture(scope="module")
def host_driver(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The compiled library of the driver that computes on the host (driver_host.c)."""
    from . import driver_host

    return driver_host.compiled(tmp_path_factory.mktemp("driver"))


@pytest.fixture
def driver(host_driver: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The driver and Torch's side of it: one stream, captured between `begin_capture` and `end_capture`."""
    from . import driver_host

    return driver_host.install(host_driver, monkeypatch.setattr)


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Whether golden files are to be rewritten."""
    return bool(request.config.getoption("--update-golden", default=False))


@pytest.fixture(scope="session", autouse=True)
def quick_interpreter() -> Iterator[None]:
    """Triton's interpreter without work that is repeated for every operation, call or launch."""
    with quickened():
        yield
