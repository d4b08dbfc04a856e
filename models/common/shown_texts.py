"""Tells texts of traced values that are only shown from those by which a function may decide.

`repr(x)` of a traced array or tensor has no values, so what a function does with it is the same at every call. It is
harmless where it is printed, logged or part of an error message.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import linecache
import logging
import pprint
import sys
import warnings
from collections.abc import Sequence
from functools import lru_cache
from types import FrameType, ModuleType
from typing import Any

#: Packages that show texts themselves: debuggers, loggers, test runners, error reports.
SHOWING = frozenset({"IPython", "_pytest", "bdb", "code", "codeop", "debugpy", "ipykernel", "logging", "pdb", "pprint", "pydevd",
                     "pytest", "rich", "tensor_graphs", "traceback", "unittest"})  # fmt: skip
_SHOW = (print, pprint.pprint, pprint.pp, warnings.warn)
_MAKE_TEXT = (repr, str, ascii, format)
_METHODS = ("format", "join", "ljust", "rjust", "center", "strip", "rstrip", "lstrip", "expandtabs")  # of literal texts
_PART = (
    ast.JoinedStr,
    ast.FormattedValue,
    ast.Tuple,
    ast.List,
    ast.Starred,
    ast.keyword,
    ast.GeneratorExp,
    ast.ListComp,
)


def is_shown(frame: FrameType | None) -> bool:
    """Whether code that is asking for a text only shows it: as an argument of `print`, a logger or a warning, as a
    statement, or in the message of an error that is raised. `frame`: that of the code. False where its source is not
    known.
    """
    if frame is None:
        return False
    if str(frame.f_globals.get("__name__", "")).partition(".")[0] in SHOWING:
        return True
    return _shows(_path(frame), frame)


def _path(frame: FrameType) -> Sequence[ast.AST]:
    """The innermost node of the source that the frame is evaluating, and the nodes around it, inner ones first; empty
    where the source is not known."""
    return _path_at(frame.f_code.co_filename, list(frame.f_code.co_positions())[frame.f_lasti // 2])


@lru_cache(maxsize=1024)
def _path_at(file: str, place: tuple[int | None, ...]) -> Sequence[ast.AST]:
    """The nodes of a file at the place (first line, last line, first column, last column)."""
    tree = _tree(file)
    if tree is None or None in place:
        return ()
    waiting: list[tuple[ast.AST, ...]] = [(tree,)]  # nodes that contain the place, inner ones first
    found: tuple[ast.AST, ...] = ()
    while waiting:
        path = waiting.pop()
        if _place(path[0]) == place and len(path) > len(found):
            found = path
        waiting += [(child, *path) for child in ast.iter_child_nodes(path[0]) if _contains(_place(child), place)]
    return found


def _place(node: ast.AST) -> tuple[int | None, ...]:
    return tuple(getattr(node, name, None) for name in ("lineno", "end_lineno", "col_offset", "end_col_offset"))


def _contains(around: tuple[int | None, ...], place: tuple[int | None, ...]) -> bool:
    """Whether a node at `around` may contain the one at `place`; nodes without a place may."""
    (line, end, *_), (first, last, *_) = around, place
    return line is None or end is None or first is None or last is None or (line <= first and last <= end)


@lru_cache(maxsize=64)
def _tree(file: str) -> ast.Module | None:
    lines = linecache.getlines(file)
    try:
        return ast.parse("".join(lines)) if lines else None
    except (SyntaxError, ValueError, RecursionError):
        return None


def _shows(path: Sequence[ast.AST], frame: FrameType) -> bool:
    """Whether the text of the first node of a path is only shown."""
    for inner, node in zip([None, *path], path):
        if isinstance(node, ast.Call) and inner is not node.func:
            called = _value(node.func, frame)
            if any(called is f for f in (*_SHOW, builtins.print)) or _is_logging(called):
                return all(_on_terminal(k, frame) for k in node.keywords)
            error = isinstance(called, type) and issubclass(called, BaseException)
            literal = isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Constant | ast.JoinedStr)
            method = literal and isinstance(node.func, ast.Attribute) and node.func.attr in _METHODS
            if not (any(called is f for f in _MAKE_TEXT) or method or error):
                return False
        elif isinstance(node, ast.Expr | ast.Raise):
            return True
        elif isinstance(node, ast.Assert):
            return inner is node.msg
        elif isinstance(node, ast.BinOp):
            if not isinstance(node.op, ast.Add | ast.Mod):
                return False
        elif not isinstance(node, (ast.Call, ast.Attribute, *_PART)) and inner is not None:
            return False
    return False


def _on_terminal(keyword: ast.keyword, frame: FrameType) -> bool:
    """Whether a keyword argument, or those in `**kwargs`, do not send what is shown to a file of the caller's."""
    streams, value = (None, sys.stdout, sys.stderr), _value(keyword.value, frame)
    if keyword.arg is None:
        return isinstance(value, dict) and any(value.get("file") is f for f in streams)
    return keyword.arg != "file" or (value is not None and any(value is f for f in streams))


def _is_logging(value: Any) -> bool:
    owner = getattr(value, "__self__", None)
    return isinstance(owner, logging.Logger | logging.LoggerAdapter) or (
        inspect.isfunction(value) and value.__module__ == "logging"
    )


def _value(node: ast.AST, frame: FrameType) -> Any:
    """The object that a name, or an attribute of a module or logger, has in a frame; None for other code."""
    if isinstance(node, ast.Name):
        names = (frame.f_locals, frame.f_globals, vars(builtins))
        return next((known[node.id] for known in names if node.id in known), None)
    if isinstance(node, ast.Attribute):
        owner = _value(node.value, frame)
        if isinstance(owner, ModuleType | logging.Logger | logging.LoggerAdapter):
            return getattr(owner, node.attr, None)
        return getattr(owner, "__dict__", {}).get(node.attr)
    return None


__all__ = ["is_shown"]
