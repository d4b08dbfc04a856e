"""Fixtures and the golden-file option of the backend tests."""

from __future__ import annotations

import ctypes
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .cuda_host import emulate


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite the golden files from what is emitted now")


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Emulation of cuda-core and of a GPU on this CPU (`cuda_host.emulate`)."""
    emulate(monkeypatch, tmp_path)


@pytest.fixture(scope="session")
def driver_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled driver that computes on the host (driver_host.c)."""
    from . import driver_host

    return driver_host.compiled(tmp_path_factory.mktemp("driver"))


@pytest.fixture(scope="module")
def host_driver(driver_library: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The driver, loaded from a copy of its own for each module: with a state that no other module has changed."""
    return ctypes.CDLL(shutil.copy(driver_library, tmp_path_factory.mktemp("driver")))


@pytest.fixture
def driver(host_driver: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The driver and Torch's side of it: one stream, captured between `begin_capture` and `end_capture`."""
    from . import driver_host

    return driver_host.install(host_driver, monkeypatch.setattr)


#: Modules whose C kernels are compiled as users' are: kernels of every class, and loops that GCC makes vectors of.
OPTIMIZED = ("test_c", "test_c_group_norms", "test_c_linear")


@pytest.fixture(scope="module", autouse=True)
def compiler(quick_c: str | None, request: pytest.FixtureRequest) -> Iterator[None]:
    """C kernels of other modules than OPTIMIZED, some thousand texts, are compiled at -O1, where loops of `omp simd`
    are vectors, too. Tests of whole programs are in tests/pipeline and tests/models, and compile at -O3."""
    with pytest.MonkeyPatch.context() as patch:
        if quick_c is not None and request.module.__name__.rpartition(".")[2] not in OPTIMIZED:
            patch.setenv("CC", quick_c)
        yield


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Whether golden files are to be rewritten."""
    return bool(request.config.getoption("--update-golden", default=False))


@pytest.fixture(scope="session", autouse=True)
def interpreter(quick_interpreter: None) -> None:
    """Kernels of these tests are interpreted without repeated work."""
