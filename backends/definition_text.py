"""Reads the source text of helper functions, copies of which emitted programs contain."""

from __future__ import annotations

import ast
import inspect
import linecache
from collections.abc import Callable
from functools import cache
from typing import Any


def source_of(value: Callable[..., Any]) -> str:
    """Source text of a function or class, with its decorators and without trailing blank lines: that of
    `inspect.getsource`, which reads the file once for each definition and looks at all modules of the process.

    Raises OSError if the source is not available.
    """
    value = inspect.unwrap(value)
    file = inspect.getsourcefile(value)
    place = _definitions(file).get(value.__qualname__) if file is not None else None
    if file is None or place is None:  # not at the top level of its module
        return inspect.getsource(value).rstrip()
    first, last = place
    return "".join(linecache.getlines(file)[first - 1 : last]).rstrip()


@cache
def _definitions(file: str) -> dict[str, tuple[int, int]]:
    """First and last line of each function and class at the top level of a file, by name; of several the last."""
    body = ast.parse("".join(linecache.getlines(file))).body
    kinds = (ast.FunctionDef, ast.ClassDef)
    return {n.name: (_first_line(n), n.end_lineno or n.lineno) for n in body if isinstance(n, kinds)}


def _first_line(node: ast.FunctionDef | ast.ClassDef) -> int:
    return min([node.lineno, *(d.lineno for d in node.decorator_list)])


__all__ = ["source_of"]
