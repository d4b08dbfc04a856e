"""Functions of C libraries have names of their own: a program that calls two of one name would not compile."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.backends.c import helpers as c_helpers
from tensor_graphs.backends.c.image_copies import KINDS
from tensor_graphs.backends.program.emit import emitted_values

DEFINED = re.compile(r"^(?:\s*\"\w+\": )?(?:\"\"\")?(?:static )?(?:inline )?void (\w+)\(", flags=re.MULTILINE)


def test_no_two_functions_have_one_name() -> None:
    files = sorted(Path(c_helpers.__file__).parent.rglob("*.py"))
    names = [name for file in files for name in sorted(set(DEFINED.findall(file.read_text()))) if name != "NAME"]
    names += [function for _, _, function in KINDS.values()]
    assert len(names) > 20 and [name for name, count in Counter(names).items() if count > 1] == []


def test_two_functions_of_one_name_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The later one took the place of the other."""
    add = emitted_values.add_texts

    def beside_another(known: dict[str, str], texts: Any, backend: str) -> None:
        add({**dict.fromkeys(texts, ""), **known} if backend == "c" else known, texts, backend)

    monkeypatch.setattr(emitted_values, "add_texts", beside_another)
    x, limits = tg.input("x", (256, 512)), tg.Limits(iterations=1, nodes=50)
    made = tg.optimize(tg.exp(x) * 2 + x, backend="c", budget=1, deterministic=True, limits=limits, measure=False)
    np.testing.assert_allclose(made(np.zeros((256, 512), np.float32)), 2)
    assert any("define a function" in w for w in made.report.warnings)
