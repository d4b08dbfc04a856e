"""Detects functions and modules whose code reads the clock, the environment or files.

A traced program keeps the values that were read during tracing. Comparing the results of two calls does not detect
values that change rarely, so the code objects are inspected instead.
"""

from __future__ import annotations

import builtins
import datetime
import dis
import io
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from types import CodeType, FunctionType
from typing import Any

import numpy as np

from ...imported import imported

_CLOCKS = ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "localtime", "gmtime",
           "strftime", "ctime", "asctime")  # fmt: skip
_NOW = ("now", "today", "utcnow")  # constructors of dates that read the clock
_READERS: tuple[tuple[Any, str], ...] = (
    *((getattr(time, name), f"time.{name}()") for name in _CLOCKS), (builtins.open, "a file"), (io.open, "a file"),
    *((read, "a file") for read in (np.load, np.loadtxt, np.fromfile)), (os.environ, "os.environ"), (os.getenv, "os.environ"),
)  # fmt: skip
_LIBRARIES = frozenset({*sys.stdlib_module_names, "torch", "numpy", "tensor_graphs"} - {"__main__"})
MOST_CODES = 200  # maximum number of functions whose code is searched


def outside_reads(function: Any) -> list[str]:
    """Outside sources that the code of a function or module reads, sorted: "time.time()", "os.environ", "a file".

    Looked at are the function, the methods `forward` and `__call__` of an object and its submodules, and functions that
    these name, without those of libraries.
    """
    found: set[str] = set()
    waiting, seen = list(_functions_of(function)), set[CodeType]()
    while waiting and len(seen) < MOST_CODES:
        one = waiting.pop()
        if one.__code__ not in seen and _package_of(one) not in _LIBRARIES:
            seen.add(one.__code__)
            for value, what in _named(one):
                if what:
                    found.add(what)
                elif isinstance(value, FunctionType):
                    waiting.append(value)
    return sorted(found)


def _package_of(function: FunctionType) -> str:
    """Name of the package in which a function was defined; "" for one of executed text."""
    module = function.__module__
    return module.partition(".")[0] if isinstance(module, str) else ""


def _functions_of(value: Any) -> Iterator[FunctionType]:
    """Functions with Python code that run when a value is called."""
    value = getattr(value, "func", value)  # of functools.partial
    value = getattr(value, "__func__", value)  # of a method
    if isinstance(value, FunctionType):
        yield value
        return
    torch = imported("torch")
    for owner in list(value.modules()) if torch is not None and isinstance(value, torch.nn.Module) else [value]:
        for name in ("forward", "__call__"):
            method = vars(owner).get(name) if hasattr(owner, "__dict__") else None
            method = method or getattr(type(owner), name, None)
            method = getattr(method, "__func__", method)
            if isinstance(method, FunctionType):
                yield method


def _named(function: FunctionType) -> Iterator[tuple[Any, str]]:
    """Yields (value, what reading it reads from outside) of the globals and their attributes that a function names."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or ())
    known = {**vars(builtins), **function.__globals__, **{n: c.cell_contents for n, c in cells if _is_filled(c)}}
    waiting = [function.__code__]
    while waiting:
        code = waiting.pop()
        waiting += [c for c in code.co_consts if isinstance(c, CodeType)]
        yield from _named_in(code, known)


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:  # a variable that was not assigned yet
        return False


def _named_in(code: CodeType, known: Mapping[str, Any]) -> Iterator[tuple[Any, str]]:
    local: dict[str, Any] = {}  # local names of modules and their contents
    value: Any = None
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_FAST"):
            value = local.get(step.argval, known.get(step.argval) if step.opname != "LOAD_FAST" else None)
        elif step.opname == "IMPORT_NAME":
            value = imported(step.argval)
        elif step.opname in ("STORE_FAST", "STORE_DEREF"):
            local[step.argval] = value
        elif step.opname in ("LOAD_ATTR", "LOAD_METHOD", "IMPORT_FROM"):
            if isinstance(value, type) and issubclass(value, datetime.date) and step.argval in _NOW:
                yield None, f"{value.__name__}.{step.argval}()"
            owner, value = value, None
            if isinstance(owner, type(sys) | type):
                with suppress(Exception):  # a module that imports its contents when they are asked for
                    value = getattr(owner, step.argval)
        elif step.opname not in ("PRECALL", "CACHE", "PUSH_NULL", "COPY_FREE_VARS"):
            value = None
        if value is not None:
            yield value, next((what for reader, what in _READERS if reader is value), "")


__all__ = ["outside_reads"]
