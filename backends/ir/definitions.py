"""Reads the source text of Python functions and classes, which is copied into emitted programs as their helpers."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable
from functools import cache
from typing import Any


def source_of(defined: Callable[..., Any]) -> str:
    """The source of a function or class that a module defines at its top level, decorators included, without the last
    newline. A module is parsed once for all of its definitions, in a third of the time of `inspect.getsource`."""
    return sources_of(defined.__module__)[defined.__name__]


@cache
def sources_of(module: str) -> dict[str, str]:
    """The source of every function and class that an imported module defines at its top level, by name."""
    text = inspect.getsource(sys.modules[module])
    lines, found = text.split("\n"), dict[str, str]()
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            found[node.name] = "\n".join(lines[first - 1 : node.end_lineno])
    return found


__all__ = ["source_of", "sources_of"]
