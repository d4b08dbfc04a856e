"""Functions of C libraries have names of their own: a program that calls two of one name would not compile."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from tensor_graphs.backends.c import helpers as c_helpers
from tensor_graphs.backends.c.image_copies import KINDS

DEFINED = re.compile(r"^(?:\s*\"\w+\": )?(?:\"\"\")?(?:static )?(?:inline )?void (\w+)\(", flags=re.MULTILINE)


def test_no_two_functions_have_one_name() -> None:
    files = sorted(Path(c_helpers.__file__).parent.rglob("*.py"))
    names = [name for file in files for name in sorted(set(DEFINED.findall(file.read_text()))) if name != "NAME"]
    names += [function for _, _, function in KINDS.values()]
    assert len(names) > 20 and [name for name, count in Counter(names).items() if count > 1] == []
