"""Executes emitted source, with its lines available to tracebacks and Triton."""

from __future__ import annotations

import linecache
import weakref
from contextlib import suppress
from typing import Any

from ....processes.forks import Lock

HELD = "__lines__"  # key in the namespace for the object that keeps the source lines
LINE, KEY = "starting_line_number", "cache_key"  # attributes of Triton's kernel objects: first line, cache key


class _Lines:
    """Registers a source text in `linecache` for the lifetime of this object."""

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
    """The `_Lines` of a text; all namespaces that execute the text share them."""
    with _showing:
        found = _lines.get((file, text))
        if found is None:
            found = _lines[file, text] = _Lines(file, text)
        return found


def execute(text: str, file: str, space: dict[str, Any]) -> None:
    """Execute the source `text` in the namespace `space`. `linecache` has its lines under the name `file` while the
    namespace exists.

    Tracebacks and Triton read the lines there. Triton's cache key contains the line number at which a kernel begins.
    That is set to 1 for all kernels, so that a kernel compiled for measuring is a cache hit in a program. Without this,
    all kernels of a program except the first would miss the cache. All cache keys are computed here, in text order,
    helpers first, because in Triton 3.6 a helper's globals enter the key of its caller only if the helper's key exists
    already.
    """
    space[HELD] = _shown(file, text)
    exec(compile(text, file, "exec"), space)
    kernels = [value for value in space.values() if hasattr(value, LINE)]
    for kernel in kernels:
        setattr(kernel, LINE, 1)
    for kernel in kernels:
        with suppress(Exception):  # the error is reported when the kernel is compiled
            getattr(kernel, KEY, None)
