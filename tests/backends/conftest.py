"""Fixtures and the golden-file option of the backend tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite the golden files from what is emitted now")


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Whether golden files are to be rewritten."""
    return bool(request.config.getoption("--update-golden", default=False))


@pytest.fixture(scope="session", autouse=True)
def reduced_at_once() -> Iterator[None]:
    """Triton's interpreter reduces by a function of two numbers element by element; here whole arrays are combined."""
    try:
        from triton.runtime.interpreter import ReduceOps
    except ImportError:
        yield
        return
    slow = ReduceOps.generic_reduce

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

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ReduceOps, "generic_reduce", fast)
        yield
