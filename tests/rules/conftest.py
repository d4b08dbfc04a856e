"""The benchmark that makes rules with their truth, which it finds by an evaluator of its own."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def rule_fuzz() -> Any:
    """`benchmarks/rule_fuzz.py`."""
    if not (ROOT / "benchmarks").is_dir():
        pytest.skip("benchmarks/ is not part of the installed package")
    sys.path.insert(0, str(ROOT))
    try:
        return importlib.import_module("benchmarks.rule_fuzz")
    finally:
        sys.path.remove(str(ROOT))
