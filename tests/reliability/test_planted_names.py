"""The faults of tests/fuzz/planted.py name functions, properties and tests that exist."""

from __future__ import annotations

import importlib
from functools import reduce
from pathlib import Path

import pytest
from tests.fuzz.planted import FAULTS


@pytest.mark.parametrize("name", FAULTS)
def test_function_and_test_exist(name: str) -> None:
    fault = FAULTS[name]
    assert reduce(getattr, fault.name.split("."), importlib.import_module(fault.module)) is not None
    file, _, test = fault.test.partition("::")
    text = (Path(__file__).parents[2] / file).read_text(encoding="utf-8")
    assert f"def {test.partition('[')[0]}(" in text if test else text
