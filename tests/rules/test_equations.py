"""Equations that benchmarks/rules/equations.py finds, and those about strides that it found: right, and derived."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensor_graphs.egraph.ir.tensor import constant
from tensor_graphs.egraph.saturate.sessions import InProcess
from tensor_graphs.rules.derive.prove import Prover
from tensor_graphs.rules.files import rule_file
from tensor_graphs.rules.files.derive_file import derive
from tensor_graphs.rules.smt.spelling import one_value

FILE = Path(__file__).parents[2] / "benchmarks" / "rules" / "strides.txt"
BEYOND = (
    "(poolavg 3 1 1 1 0 (poolavg",
    "(relu (smul (relu",
    "(Iewmul) (poolavg",
    "(conv2d 1 1 1 0 (Iewmul)",
    "2 1 0 (Iconv 3 3)))=>(conv2d 1 1 1 0 ",
)
PROVER, SESSION = Prover(), InProcess()


@pytest.fixture(scope="module")
def found(benchmark_module: Any) -> Any:
    return benchmark_module("rules.equations")


def test_equations_are_found_again(found: Any) -> None:
    first, again = (list(found.equations("matrices", seed=4, depth=2, sample=400)) for _ in range(2))
    texts = {frozenset(map(found.show, pair)) for pair in first}
    assert first == again and len(first) > 20
    assert frozenset(("?input_1", "(ewmul ?input_1 (Iewmul))")) in texts
    assert not any(found.instance(a, *b) for i, b in enumerate(first) for a in first[:i])


def test_what_is_found_is_right_or_refuted_and_derived(found: Any) -> None:
    lines = [line for text in found.drawn("matrices", 0, 2, 400, 12) for line in rule_file.read(text)]
    right = [line for line in lines if rule_file.verdict(line).status in ("proved", "tested")]
    assert len(right) > 4
    assert [line.text for line in right if not derive(0, line, PROVER, SESSION).derived] == []


@pytest.mark.skipif(not FILE.exists(), reason="benchmarks/ is not part of the installed package")
def test_strides_are_derived() -> None:
    lines = [x for x in rule_file.read(FILE.read_text(encoding="utf-8")) if not any(b in x.text for b in BEYOND)]
    assert len(lines) > 40
    assert [line.text for line in lines[::10] if not derive(0, line, PROVER, SESSION).derived] == []


def test_constants_of_one_value() -> None:
    a = constant(np.asarray([1.0, 1e-20]))
    assert one_value(a, a + a * 0.0) and one_value(a + a, a * 2.0)
    assert not one_value(a, constant(np.asarray([1.0, 2e-20])))
    assert not one_value(a, constant(np.asarray([[1.0, 1e-20]])))
