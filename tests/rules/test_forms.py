"""Rules of many forms (benchmarks/rules/forms.txt): no wrong one passes, no right one is refuted, most are proved."""

from __future__ import annotations

import importlib
import sys
from collections import Counter
from pathlib import Path

import pytest

from tensor_graphs.egraph.saturate import InProcess
from tensor_graphs.rules import check_file
from tensor_graphs.rules.derive_file import derive
from tensor_graphs.rules.prove import Prover

ROOT = Path(__file__).parents[2]
Form = tuple[str, str, str]


@pytest.fixture(scope="module")
def forms() -> list[Form]:
    if not (ROOT / "benchmarks").is_dir():
        pytest.skip("benchmarks/ is not part of the installed package")
    sys.path.insert(0, str(ROOT))
    try:
        return list(importlib.import_module("benchmarks.rule_fuzz").forms())
    finally:
        sys.path.remove(str(ROOT))


def line(text: str) -> check_file.Line:
    (found,) = check_file.read(text, pairs="\n" in text)
    return found


def test_verdicts(forms: list[Form]) -> None:
    found = [(truth, check_file.verdict(line(text)).status, text) for _, truth, text in forms[::3]]
    counts = Counter((truth, status) for truth, status, _ in found)
    assert [text for truth, status, text in found if truth == "wrong" and status != "refuted"] == []
    assert [text for truth, status, text in found if truth == "right" and status in ("refuted", "unknown")] == []
    assert counts["right", "proved"] > 10 * counts["right", "tested"]


def test_derivations(forms: list[Form]) -> None:
    prover, session = Prover(), InProcess()
    right = [
        text for _, truth, text in forms if truth == "right" and not text.startswith("(poolavg 2 2 2 2 1 (poolavg")
    ]
    assert [text for text in right[::9] if not derive(0, line(text), prover, session).derived] == []
