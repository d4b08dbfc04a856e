"""Executes emitted source, with its lines available to tracebacks and Triton."""

from __future__ import annotations

import linecache
import re
import weakref
from contextlib import suppress
from functools import lru_cache
from hashlib import sha256
from types import CodeType
from typing import Any

from ....processes.forks import Lock

HELD = "__lines__"  # key in the namespace for the object that keeps the source lines
LARGE = 2000  # characters of a class from which its code is kept: compiling the helpers of a GPU program takes 10 ms
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


#: A class at the top level: its decorators, its first line, indented and empty lines.
_CLASS = re.compile(r"^(?:@.*\n)*class \w.*\n(?:[ \t].*\n|\n)*", re.MULTILINE)


@lru_cache(maxsize=64)
def _class_code(text: str) -> tuple[CodeType, _Lines] | None:
    """The code of a class, and the lines of its text; None if the text ends within a string or an expression."""
    file = f"<class {sha256(text.encode()).hexdigest()[:12]}>"
    try:
        return compile(text, file, "exec"), _shown(file, text)
    except SyntaxError:
        return None


def _compiled(text: str, file: str) -> list[CodeType]:
    """The code of a source text in parts, to be executed in order: programs share the code of large classes."""
    parts, at = [], 0
    try:
        for found in _CLASS.finditer(text):
            if len(found[0]) >= LARGE and (shared := _class_code(found[0])) is not None:
                parts += [_part(text, at, found.start(), file), shared[0]]
                at = found.end()
        return [*parts, _part(text, at, len(text), file)]
    except SyntaxError:  # of a class within a string, or of the text
        return [compile(text, file, "exec")]


def _part(text: str, start: int, end: int, file: str) -> CodeType:
    """The code of a part of a source text, with the line numbers of the text."""
    return compile("\n" * text.count("\n", 0, start) + text[start:end], file, "exec")


def execute(text: str, file: str, space: dict[str, Any]) -> None:
    """Execute the source `text` in the namespace `space`. `linecache` has its lines under the name `file` while the
    namespace exists; large classes, such as the helpers of GPU programs, have a file name of their own.

    Tracebacks and Triton read the lines there. Triton's cache key contains the line number at which a kernel begins.
    That is set to 1 for all kernels, so that a kernel compiled for measuring is a cache hit in a program. Without this,
    all kernels of a program except the first would miss the cache. All cache keys are computed here, in text order,
    helpers first, because in Triton 3.6 a helper's globals enter the key of its caller only if the helper's key exists
    already.
    """
    space[HELD] = _shown(file, text)
    for code in _compiled(text, file):
        exec(code, space)
    kernels = [value for value in space.values() if hasattr(value, LINE)]
    for kernel in kernels:
        setattr(kernel, LINE, 1)
    for kernel in kernels:
        with suppress(Exception):  # the error is reported when the kernel is compiled
            getattr(kernel, KEY, None)
