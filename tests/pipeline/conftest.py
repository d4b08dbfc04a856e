"""Settings of tests of the pipeline."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ..triton_interpreter import quickened


@pytest.fixture(scope="session")
def quick_interpreter() -> Iterator[None]:
    """Triton's interpreter without work that is repeated for every operation, call or launch."""
    with quickened():
        yield
