"""Imports that a search will need, made while somebody else works."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from threading import Thread

SOLVERS = ("ortools.math_opt.python.mathopt", "ortools.sat.python.cp_model")
STORE = ("duckdb", "pyarrow")


def load_ahead(modules: Sequence[str]) -> Thread:
    """Import libraries in a thread of its own: the solvers' take half a second, and so does the cost store's."""

    def load() -> None:
        for module in modules:
            with suppress(ImportError, RuntimeError):  # whoever needs it will say so; the process may be ending
                import_module(module)

    thread = Thread(target=load, name="load-ahead")
    thread.start()
    return thread


__all__ = ["SOLVERS", "STORE", "load_ahead"]
