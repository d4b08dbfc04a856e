"""Rules of many forms (benchmarks/rules/forms.txt): no wrong one passes, no right one is refuted, most are proved."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tensor_graphs.egraph.saturate.sessions import InProcess
from tensor_graphs.rules.derive.prove import Prover
from tensor_graphs.rules.files import rule_file
from tensor_graphs.rules.files.derive_file import derive

Form = tuple[str, str, str]


@pytest.fixture(scope="module")
def forms(rule_fuzz: Any) -> list[Form]:
    return list(rule_fuzz.forms())


def line(text: str) -> rule_file.Line:
    (found,) = rule_file.read(text, pairs="\n" in text)
    return found


def test_verdicts(forms: list[Form]) -> None:
    found = [(truth, rule_file.verdict(line(text)).status, text) for _, truth, text in forms[::5]]
    counts = Counter((truth, status) for truth, status, _ in found)
    assert [text for truth, status, text in found if truth == "wrong" and status != "refuted"] == []
    assert [text for truth, status, text in found if truth == "right" and status in ("refuted", "unknown")] == []
    assert counts["right", "proved"] > 10 * counts["right", "tested"]


def test_derivations(forms: list[Form]) -> None:
    prover, session = Prover(), InProcess()
    right = [text for _, truth, text in forms if truth == "right"]
    means = [text for text in right if text.startswith("(poolavg 2 2 2 2 1 (poolavg")]
    assert [text for text in (*right[::18], *means) if not derive(0, line(text), prover, session).derived] == []
