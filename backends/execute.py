"""Source that was written for kernels becomes what it defines."""

from __future__ import annotations

import linecache
import weakref
from contextlib import suppress
from typing import Any

from ..egraph.forks import Lock

HELD = "__lines__"  # the name of what keeps a text's lines, in the name space that it was run in
LINE, KEY = "starting_line_number", "cache_key"  # where a kernel begins, and what it is found by, in Triton's objects


class _Lines:
    """A text whose lines can be looked up in `linecache`, as long as this object lives."""

    def __init__(self, file: str, text: str) -> None:
        entry = (len(text), None, text.splitlines(keepends=True), file)
        linecache.cache[file] = entry
        weakref.finalize(self, _hidden, file, entry)


def _hidden(file: str, entry: object) -> None:
    if linecache.cache.get(file) is entry:
        del linecache.cache[file]


_lines: weakref.WeakValueDictionary[tuple[str, str], _Lines] = weakref.WeakValueDictionary()
_showing = Lock()


def _shown(file: str, text: str) -> _Lines:
    """What keeps the lines of a text: the same object for all name spaces that it is run in."""
    with _showing:
        found = _lines.get((file, text))
        if found is None:
            found = _lines[file, text] = _Lines(file, text)
        return found


def execute(text: str, file: str, space: dict[str, Any]) -> None:
    """Run a text in a name space. Its lines can be looked up under `file` as long as the name space lives: tracebacks show them,
    Triton reads its kernels' text.

    The keys of Triton's cache hold the line at which a kernel begins. All begin at the first one here: what was compiled to be
    measured need not be compiled again where it stands in a program, and below other kernels. The keys are made at once, in the
    order of the text, helpers first: in Triton 3.6 what a helper reads counts in the key of a kernel that calls it only if the helper's
    own key is known, so that all kernels of a program but the first had other keys than when they were measured.
    """
    space[HELD] = _shown(file, text)
    exec(compile(text, file, "exec"), space)
    kernels = [value for value in space.values() if hasattr(value, LINE)]
    for kernel in kernels:
        setattr(kernel, LINE, 1)
    for kernel in kernels:
        with suppress(Exception):  # what is the matter with it is said where it is compiled
            getattr(kernel, KEY, None)
