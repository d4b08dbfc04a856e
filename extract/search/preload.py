"""Imports libraries that a later search step needs, in the background."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import copy_context
from importlib import import_module
from threading import Thread

SOLVER_MODULES = ("ortools.math_opt.python.mathopt", "ortools.sat.python.cp_model")
STORE_MODULES = ("duckdb", "pyarrow")


def import_in_background(modules: Sequence[str], then: Callable[[], object] = lambda: None) -> Thread:
    """Start a thread that imports modules and then calls `then`, and return the thread.

    Solvers take half a second to import, and so does the cost store. Errors are left to the later user.
    """

    def load() -> None:
        for module in modules:
            with suppress(ImportError, RuntimeError):  # the process may be ending
                import_module(module)
        with suppress(Exception):
            then()

    thread = Thread(target=copy_context().run, args=(load,), name="load-ahead")
    thread.start()
    return thread


__all__ = ["SOLVER_MODULES", "STORE_MODULES", "import_in_background"]
