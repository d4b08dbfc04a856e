"""Imports that a search will need, made while somebody else works."""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module
from threading import Thread

SOLVERS = ("ortools.math_opt.python.mathopt", "ortools.sat.python.cp_model")


def load_solvers() -> Thread:
    """Import the solvers' libraries, which takes half a second, in a thread of its own."""

    def load() -> None:
        for module in SOLVERS:
            with suppress(ImportError, RuntimeError):  # whoever needs it will say so; the process may be ending
                import_module(module)

    thread = Thread(target=load, name="load-solvers")
    thread.start()
    return thread


__all__ = ["load_solvers"]
