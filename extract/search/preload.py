"""Imports libraries that a later search step needs, in the background."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import copy_context
from importlib import import_module
from threading import Thread

SOLVER_MODULES = ("ortools.math_opt.python.mathopt", "ortools.sat.python.cp_model")
STORE_MODULES = ("duckdb", "pyarrow")


def import_in_background(modules: Sequence[str], first: Callable[[], object] = lambda: None) -> Thread:
    """Start a thread that calls `first` and then imports modules, and return the thread.

    Solvers take half a second to import, and so does the cost store. Errors are left to the later user.
    """

    def load() -> None:
        with suppress(Exception):
            first()
        for module in modules:
            with suppress(ImportError, RuntimeError):  # the process may be ending
                import_module(module)

    thread = Thread(target=copy_context().run, args=(load,), name="load-ahead")
    thread.start()
    return thread


__all__ = ["SOLVER_MODULES", "STORE_MODULES", "import_in_background"]
