"""Functions of the standard library are replaced for one module (`only_in`), not for the whole process: other threads,
of a compiler or of an earlier test, would get them, and the test would fail now and then.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from .. import only_in as module
from ..only_in import only_in

#: attributes that belong to the whole process and that only the thread of a test reads
ALLOWED = {
    *(f"sys.{name}" for name in ("dont_write_bytecode", "executable", "pycache_prefix", "stderr", "stdout")),
    *(f"gc.{name}" for name in ("get_freeze_count", "{}")),
    "builtins.print",
    "builtins.released",
    "pwd.getpwuid",
    "random._urandom",
    "tempfile.tempdir",
}


TESTS = Path(__file__).parents[1]
SETS = re.compile(r"\.setattr\(\s*(?:\w+\.)*(\w+),\s*(?:\"(\w+)\"|\w+),")


def replaced(text: str) -> Iterator[str]:
    """Attributes of modules of the standard library, such as "os.replace", that a test's text sets by `setattr`."""
    for library, name in SETS.findall(text):
        if library in sys.stdlib_module_names:
            yield f"{library}.{name or '{}'}"


def test_functions_of_the_standard_library_are_replaced_for_one_module() -> None:
    found = {
        f"{path.relative_to(TESTS)}: {name}"
        for path in TESTS.rglob("*.py")
        for name in replaced(path.read_text(encoding="utf-8"))
        if name not in ALLOWED
    }
    assert not found, "use only_in(patch, user, library, name=function)"


@pytest.mark.parametrize("owner", ["os", "files.os", "search.subprocess"])
def test_replacements_for_the_whole_process_are_found(owner: str) -> None:
    text = f'monkeypatch.setattr({owner}, "replace", None)'
    assert list(replaced(text)) == [f"{owner.split('.')[-1]}.replace"]
    assert not list(replaced('patch.setattr(timing, "interleaved", None)'))


def test_a_function_is_replaced_for_its_user_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "time", time, raising=False)
    with monkeypatch.context() as patch:
        only_in(patch, module, "time", sleep=len)
        used = module.time  # type: ignore[attr-defined]
        assert used.sleep is len and used.monotonic is time.monotonic and time.sleep is not len
    assert module.time is time  # type: ignore[attr-defined]
