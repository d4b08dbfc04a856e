"""The benchmark that makes rules with their truth, which it finds by an evaluator of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture(scope="session")
def rule_fuzz(benchmark_module: Callable[[str], Any]) -> Any:
    """`benchmarks/rules/fuzz.py`."""
    return benchmark_module("rules.fuzz")
