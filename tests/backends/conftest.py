"""Fixtures and the golden-file option of the backend tests."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

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
    """Triton's interpreter without work that is repeated for every operation or launch."""
    try:
        from triton.runtime import interpreter
    except ImportError:
        yield
        return
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(interpreter.ReduceOps, "generic_reduce", _reduced_at_once(interpreter.ReduceOps.generic_reduce))
        patched.setattr(interpreter, "_get_np_dtype", _known_dtypes(interpreter._get_np_dtype))
        patched.setattr(interpreter, "_patch_builtin", _known_builtins(interpreter))
        options = interpreter.interpreter_builder.options
        if not options.debug:  # the conditions of overflow checks are computed, and dropped without `debug`
            patched.setattr(interpreter.interpreter_builder, "options", replace(options, sanitize_overflow=False))
        yield


def _reduced_at_once(slow: Callable[..., Any]) -> Callable[..., Any]:
    """`ReduceOps.generic_reduce` that combines whole arrays: the original calls a function of two numbers per
    element."""

    def fast(self: Any, given: Any) -> Any:
        if self.axis is None or len(given) != 1:
            return slow(self, given)
        data, dtype = given[0].handle.data, given[0].dtype
        parts = [self.to_tensor(np.take(data, i, self.axis), dtype) for i in range(data.shape[self.axis])]
        total = parts[0]
        for part in parts[1:]:
            total = self.combine_fn.fn(total, part)
        found = np.asarray(total.handle.data).reshape(np.delete(data.shape, self.axis))
        return [self.to_tensor(np.expand_dims(found, self.axis) if self.keep_dims else found, dtype)]

    return fast


def _known_dtypes(slow: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """`_get_np_dtype` with a cache of scalar types by name: the original makes its table at each call."""
    from triton.language import dtype

    known: dict[str, Any] = {}

    def fast(kind: Any) -> Any:
        if type(kind) is not dtype:
            return slow(kind)
        if kind.name not in known:
            known[kind.name] = slow(kind)
        return known[kind.name]

    return fast


def _known_builtins(interpreter: Any) -> Callable[..., None]:
    """`_patch_builtin` with a cache of each module's builtins: the original lists all members at each launch."""
    known: dict[Any, list[tuple[str, Any]]] = {}

    def fast(package: Any, builder: Any, scope: Any) -> None:
        if package not in known:
            members = inspect.getmembers(package)
            known[package] = [(name, member) for name, member in members if interpreter.tl.core.is_builtin(member)]
        for name, member in known[package]:
            interpreter._patch_attr(package, name, member, builder, scope)

    return fast
